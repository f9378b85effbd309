"""The command `advise` on small models: what it measures and shows, not how fast anything is."""

import importlib.util
import json
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from launch import launch
from this_keras import keras

from grace_tf.__main__ import WRONG_ARGUMENT, main
from grace_tf.advice.network import KINDS, Collective, Cost, Network
from grace_tf.aggregation.measure import codec, link
from grace_tf.cli import describe
from grace_tf.cli.advise import codecs, errors, own_step, picture, probe, situation
from grace_tf.cli.advise.gradients import drawn
from grace_tf.cli.advise.subject import parse_shapes, subject
from grace_tf.core import registry

SHAPES = [(3, 3, 16, 64), (64,), (64, 500), (500,)]
TEXT = "3,3,16,64;64;64,500;500"
HOST = dict.fromkeys(KINDS, Cost(5e-4, 4e-9))
MODEL = """
from this_keras import keras

def small():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(200), keras.layers.Dense(10)])
    model.compile("sgd", "mse")
    return model, keras.ops.ones((4, 8)) if hasattr(keras, "ops") else _ones(), _zeros()

def _ones():
    import numpy
    return numpy.ones((4, 8), "float32")

def _zeros():
    import numpy
    return numpy.arange(40, dtype="float32").reshape(4, 10)

def wrong():
    return 3
"""


UNUSED = """
import tensorflow as tf
from this_keras import keras

class Unused(keras.layers.Dense):
    def build(self, shape):
        super().build(shape)
        self.spare = self.add_weight(shape=(3,), initializer="ones", name="spare")

def make():
    model = keras.Sequential([keras.Input((4,)), Unused(2)])
    model.compile("sgd", "mse")
    return model, tf.ones([4, 4]), tf.zeros([4, 2])
"""


@pytest.fixture
def advise(capsys):
    """Runs the command with exchanges inside this machine that take what HOST says."""

    def run(*arguments):
        with mock.patch.object(probe, "loopback", return_value=HOST):
            code = main(["advise", "--repeats", "1", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_help_imports_no_tensorflow():
    program = (
        "import sys; sys.argv[0] = 'grace-tf'; sys.orig_argv[:] = ['python', '-m', 'grace_tf']\n"
        "import grace_tf.__main__ as m\n"
        "try: m.main(['advise', '--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'tensorflow' not in sys.modules"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not shown.returncode, shown.stderr
    assert "--quality" in shown.stdout


def test_the_table_the_sentence_and_the_numbers_agree(advise, tmp_path):
    file = tmp_path / "advice.json"
    methods = ["bf16", "eden:bits=4", "topk:ratio=0.01", "signsgd"]
    code, out, _ = advise(
        *("--shapes", TEXT, "--workers", "4", "--link", "1mbit,2ms", "--compute-ms", "30"),
        *("--json", str(file), "--methods", *methods),
    )
    assert code == 0
    told = json.loads(file.read_text())
    assert {each["spec"] for each in told["methods"]} == {"none", *methods}
    times = [each["time"]["seconds"] for each in told["methods"]]
    assert times == sorted(times)
    assert told["spec"] == "eden:bits=4"  # the slow link leaves no doubt
    assert told["best_16_bit"] == "bf16"
    sentence = out.strip().splitlines()[-1]
    assert sentence == told["sentence"]
    assert "4 workers at 1 Mbit/s, 2 ms: " in sentence
    assert "topk:ratio=0.01 takes" in sentence
    assert "not recommended: signsgd needs a learning rate" in out
    levels = {each["spec"]: each["level"] for each in told["methods"]}
    assert (levels["topk:ratio=0.01"], levels["signsgd"]) == ("aggressive", None)
    for each in told["methods"]:
        assert out.count(f"\n{each['spec']} ") == 1


def test_a_fast_link_needs_no_compression(advise):
    arguments = ["--shapes", TEXT, "--workers", "2", "--link", "400gbit", "--compute-ms", "9000"]
    _, out, _ = advise(*arguments, "--methods", "bf16", "eden:bits=4")
    assert out.strip().splitlines()[-1].startswith("Do not compress: a step of 2 workers at 400 ")


def test_a_model_runs_its_own_step_and_has_its_own_gradients(advise, tmp_path):
    (tmp_path / "models.py").write_text(MODEL)
    model = f"{tmp_path / 'models.py'}:small"
    code, out, _ = advise(
        "--model", model, "--workers", "3", "--link", "10mbit", "--methods", "bf16"
    )
    assert code == 0
    assert "the model's own" in out
    chosen = subject(model, None)
    assert chosen.shapes == [(8, 200), (200,), (200, 10), (10,)]
    meet = mock.Mock()
    assert chosen.compute(1, meet, list).seconds > 0
    # Workers on one host begin together: each step, and each forward and backward pass.
    assert meet.call_count == 3 * 2
    first, again, other = (chosen.gradients([2, 0], worker) for worker in (0, 0, 1))
    assert [tuple(g.shape) for g in first] == [(200, 10), (8, 200)]
    np.testing.assert_array_equal(first[0], again[0])
    assert float(tf.norm(first[0])) > 0
    assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"--link": "1gbps"}, "A link is written as"),
        ({"--link": None}, "--link is needed"),
        ({"--workers": None}, "--workers is needed"),
        ({"--workers": "1"}, "--workers is at least 2"),
        ({"--per-host": "3"}, "--per-host divides the workers"),
        ({"--per-host": "4"}, "all workers on one host"),
        ({"--shapes": "3,x"}, "--shapes takes 3,3,3,64;"),
        ({"--shapes": None, "--model": "vgg"}, "--model takes bert-base, resnet50 or file.py:"),
        ({"--shapes": None, "--model": "no.py:f"}, "There is no file 'no.py'"),
        ({"--compute-ms": None}, "only the shapes are known"),
        ({"--compute-ms": "-1"}, "--compute-ms is a time"),
        ({"--quality": "best"}, "quality is safe, balanced, aggressive"),
        ({"--methods": "best"}, "Unknown compressor 'best'"),
        ({"--methods": "none@0;bf16@9"}, "changes from step to step"),
        ({"--repeats": "0"}, "--repeats is at least 1"),
    ],
)
def test_a_wrong_argument_is_one_sentence(advise, change, sentence):
    given = {"--shapes": TEXT, "--workers": "4", "--link": "1gbit", "--compute-ms": "1"}
    given = {name: value for name, value in {**given, **change}.items() if value is not None}
    code, _, err = advise(*[word for pair in given.items() for word in pair])
    assert code == WRONG_ARGUMENT
    assert sentence in err
    assert err.count("\n") == 1, err


@pytest.mark.parametrize(
    "name, sentence",
    [("wrong", "must return a compiled Keras model"), ("none", "has no function 'none'")],
)
def test_a_wrong_function_is_one_sentence(tmp_path, name, sentence):
    (tmp_path / "models.py").write_text(MODEL)
    with pytest.raises(ValueError, match=sentence):
        subject(f"{tmp_path / 'models.py'}:{name}", None)


def test_a_picture_has_a_line_for_each_method_and_the_bound(advise, tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    drawn, bound, file = [], [], tmp_path / "steps.svg"
    plot, axhline = Axes.plot, Axes.axhline

    def seen(axes, x, y, *style, label, **keywords):
        drawn.append((label, len(x), min(y)))
        return plot(axes, x, y, *style, label=label, **keywords)

    def line(axes, y, **keywords):
        bound.append(y)
        return axhline(axes, y, **keywords)

    with mock.patch.object(Axes, "plot", seen), mock.patch.object(Axes, "axhline", line):
        code, _, _ = advise(
            *("--shapes", TEXT, "--workers", "4", "--link", "1gbit", "--compute-ms", "30"),
            *("--plot", str(file), "--methods", "bf16"),
        )
    assert code == 0
    assert file.read_text().startswith("<?xml")
    assert [label for label, _, _ in drawn] == ["none", "bf16"]
    assert all(count == len(picture.RATES) for _, count, _ in drawn)
    assert len(bound) == 1 and 0 < bound[0] < min(least for _, _, least in drawn)
    assert (picture.RATES[0], picture.RATES[-1]) == (1e7, pytest.approx(1e11))


def test_without_matplotlib_a_picture_is_refused_in_one_sentence(advise):
    given = ["--shapes", TEXT, "--workers", "4", "--link", "1gbit", "--compute-ms", "1"]
    with mock.patch.object(picture.importlib.util, "find_spec", return_value=None):
        code, _, err = advise(*given, "--plot", "x.png")
    assert (code, err.count("\n")) == (WRONG_ARGUMENT, 1)
    assert "pip install matplotlib" in err


def test_shapes_are_read_from_text_lines_and_json(tmp_path):
    file = tmp_path / "shapes"
    for text in (TEXT, TEXT.replace(";", "\n"), json.dumps(SHAPES)):
        assert parse_shapes(text) == SHAPES
        file.write_text(text)
        assert parse_shapes(str(file)) == SHAPES


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("method", ["none", "qsgd", "powersgd:rank=1", "topk:ratio=0.01"])
def test_the_buckets_have_the_bytes_of_the_plan(method, size):
    shapes = [(1000, 300), (300,), (300, 700), (700,)]  # large enough for two hops
    buckets = codecs.measure(method, drawn(shapes), size, 1)
    wanted, _ = describe.sent_by_a_worker(registry.get(method), shapes, size)
    sent = Network(size, HOST).sent([each for b in buckets for each in b.collectives])
    assert round(sent) == wanted
    assert buckets[-1].ready == 1.0
    assert all(each.encode > 0 for each in buckets)


def test_every_bucket_has_its_own_collectives_and_its_share_of_the_codec():
    shapes = [(3 << 20,), (1 << 20,), (6 << 20,)]
    first, second = codecs.measure("bf16", drawn(shapes), 2, 1)
    assert [b.dense for b in (first, second)] == [4 * (6 << 20), 4 * (4 << 20)]
    assert second.encode == pytest.approx(first.encode * 4 / 6)
    sizes = [[each.nbytes for each in b.collectives if each.nbytes > 4] for b in (first, second)]
    flag = 2
    assert sizes == [[2 * (6 << 20) + flag], [2 * (4 << 20) + flag]]


def slowest(times):
    """Each time, or the other worker's where that is longer: it takes 5, 1 and 1 seconds."""
    others = (5.0, 1.0, 1.0) if len(times) > 1 else (5.0,)
    return [max(pair) for pair in zip(times, others, strict=True)]


def test_in_each_repeat_the_slowest_worker_sets_the_time_of_the_step(tmp_path):
    (tmp_path / "models.py").write_text(MODEL)
    chosen = subject(f"{tmp_path / 'models.py'}:small", None)
    # Of the five rounds two do not count.
    steps = iter([9.0, 9.0, 2.0, 3.0, 4.0])
    others = np.repeat([[5.0], [1.0], [1.0]], 6, 1)  # the other worker's step, loss, gradients

    def slower(times):
        return np.maximum(times, others.ravel() if len(times) > 1 else 5.0)

    with (
        mock.patch.object(own_step, "duration", lambda function: next(steps)),
        mock.patch.object(
            own_step, "moments_of", lambda *_: lambda: [tf.constant([0.1, *[0.4] * 4], tf.float64)]
        ),
    ):
        found = chosen.compute(3, lambda: None, slower)
    assert (found.forward, found.seconds) == (1.0, 4.0)


def test_short_steps_are_timed_several_in_a_row_since_the_first_after_a_pause_is_slow(tmp_path):
    (tmp_path / "models.py").write_text(MODEL)
    chosen = subject(f"{tmp_path / 'models.py'}:small", None)
    # The second step of 40 ms tells that three of them take a tenth of a second.
    times = iter([9.0, 0.04, 0.09])
    warm_up, runs = [[9.0] * 5] * 2, np.outer([1, 2, 3], [0.005, 0.01, 0.009, 0.0, 0.006])
    reached = iter([*warm_up, *runs])
    with (
        mock.patch.object(own_step, "duration", lambda run: (run(), next(times))[1]),
        mock.patch.object(own_step, "moments_of", lambda *_: lambda: [tf.constant(next(reached))]),
        mock.patch.object(keras.Model, "train_on_batch", return_value=0.0) as step,
    ):
        found = chosen.compute(1, lambda: None, list)
    assert step.call_count == 1 + 1 + 3
    assert (found.forward, found.seconds) == pytest.approx((0.01, 0.03))
    # The last gradient is ready after 12 ms, those before it after 12, 18 and 20 ms.
    assert (found.backward, found.update) == pytest.approx((0.01, 0.01))
    assert found.shares == pytest.approx((0.2, 0.6, 0.0, 0.2))


def test_the_moments_of_a_step_are_those_of_its_forward_and_backward_pass(tmp_path):
    (tmp_path / "unused.py").write_text(UNUSED)
    spec = importlib.util.spec_from_file_location("unused", tmp_path / "unused.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model, x, y = module.make()
    *reached, spare = own_step.moments_of(model, x, y, model.trainable_variables)()[0].numpy()
    assert spare == 0.0
    assert all(0.0 < each < 60.0 for each in reached) and len(reached) == 3


def test_the_gradients_whose_moments_are_read_are_computed():
    """TensorFlow computes a gradient only if an output of the graph needs it."""
    layers = [keras.layers.Dense(3), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("sgd", "mse")
    moments = own_step.moments_of(
        model, tf.ones([5, 4]), tf.ones([5, 2]), model.trainable_variables
    )
    traced = moments.get_concrete_function()
    needed, left = set(), [each.op for each in traced.outputs]
    while left:
        operation = left.pop()
        if operation.name not in needed:
            needed.add(operation.name)
            left += [each.op for each in operation.inputs]
    products = [op.name for op in traced.graph.get_operations() if op.type == "MatMul"]
    assert len(products) >= 5 and needed.issuperset(products)


def test_a_table_of_embeddings_is_not_made_dense_where_backward_is_timed():
    layers = [keras.layers.Embedding(5000, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((2,), dtype="int32"), *layers])
    model.compile("sgd", "mse")
    x, y = tf.constant([[1, 2]]), tf.constant([[1.0]])
    seen, one = [], own_step._one_element
    with mock.patch.object(own_step, "_one_element", lambda x: seen.append(x) or one(x)):
        own_step.moments_of(model, x, y, model.trainable_variables)()
    assert [type(each).__name__ for each in seen[1:2]] == ["IndexedSlices"]


def test_a_variable_without_gradient_is_timed_and_its_gradient_is_zero(tmp_path):
    (tmp_path / "unused.py").write_text(UNUSED)
    chosen = subject(f"{tmp_path / 'unused.py'}:make", None)
    assert chosen.shapes[-1] == (3,)
    before = [grad.numpy() for grad in chosen.gradients([0, 1, 2], 0)]
    assert chosen.compute(2, lambda: None, list).seconds > 0
    after = [grad.numpy() for grad in chosen.gradients([0, 1, 2], 0)]
    assert not before[-1].any() and before[0].any()
    for first, second in zip(before, after):  # the timed steps have left no trace
        np.testing.assert_array_equal(first, second)


def test_a_gradient_that_is_ready_before_that_of_a_later_variable_waits_for_it():
    shares = own_step.shares_of([10.0, 6.0, 2.0, 3.0, 1.0, -0.1])
    assert shares == pytest.approx((0.4, 0.3, 0, 0.2, 0.1, 0))
    assert own_step.shares_of([0.0, -1.0]) == (0.0, 0.0)


def test_in_each_repeat_the_slowest_worker_sets_the_time_of_the_codec():
    times = iter([9.0, 9.0, 0.5, 2.0, 0.5, 3.0, 0.5, 4.0])
    with mock.patch.object(codec, "duration", lambda function: next(times)):
        (bucket,) = codecs.measure("bf16", drawn([(100, 40)]), 2, 3, agree=slowest)
    assert (bucket.encode, bucket.encode + bucket.decode) == (1.0, 4.0)


def test_many_workers_are_extrapolated_from_few():
    """A gather of 1024 payloads would not fit in memory."""
    with mock.patch.object(codec.Step, "seconds", autospec=True) as seconds:
        seconds.side_effect = lambda step, repeats, meet, agree: (1.0, 1.0 + step._size)
        (one,) = codecs.measure("topk:ratio=0.01", drawn([(1000, 40)]), 1024, 1)
        assert one.encode + one.decode == pytest.approx(1.0 + 1024)
        assert {call.args[0]._size for call in seconds.call_args_list} == {2, 8}


def test_the_error_is_that_of_the_mean():
    grads = [[tf.constant([[1.0, 2.0]] * 800)], [tf.constant([[3.0, -6.0]] * 800)]]
    assert errors.vnmse("none", grads) == 0.0
    kept = errors.vnmse("topk:ratio=0.5", grads)
    # The second column is the larger one of both workers; the mean of the first, 2, is lost.
    assert kept == pytest.approx(2.0**2 / (2.0**2 + 2.0**2))
    assert errors.peak(grads) == 6.0


def test_the_sample_is_of_kernels_that_fit():
    shapes = [(64,), (30, 50), (5000, 5000), (100, 100), (200, 200), (90, 90), (80, 80)]
    assert errors.sample(shapes) == [3, 4, 5, 6]  # neither the largest nor the vector
    assert errors.sample([(5000, 5000), (3000, 3000)]) == [1]
    assert errors.sample([(10,), (5000,)]) == [0, 1]


def test_the_cost_is_fitted_from_a_small_and_a_large_buffer():
    wanted = {
        "sum": Cost(1e-3, 2e-9),
        "half_sum": Cost(1e-3, 5e-9),
        "gather": Cost(2e-3, 3e-9),
        "all_to_all": Cost(4e-3, 1e-9),
    }
    least = {}
    for kind, cost in wanted.items():
        for nbytes in (probe.SMALL, probe.LARGE):
            each = Collective(kind, nbytes)
            least[kind, nbytes] = each.hops(4) * cost.hop + each.sent(4) * cost.byte
    found = link.fitted(least, {each: seconds / 4 for each, seconds in least.items()}, 4)
    for kind, cost in wanted.items():
        assert found[kind].busy_byte == pytest.approx(found[kind].byte / 4)
        assert found[kind].busy_hop == pytest.approx(found[kind].hop / 4)
        assert found[kind].byte == pytest.approx(cost.byte)
        assert found[kind].hop == pytest.approx(cost.hop, rel=0.02)


def test_two_processes_measure_what_an_exchange_takes_between_them():
    ((told,), nothing) = launch(probe.__file__, "1").succeeded().answers()
    assert set(told) == set(KINDS)
    assert all(cost["hop"] > 0 and cost["byte"] >= 0 for cost in told.values())
    assert all(0 < cost["busy_hop"] <= cost["hop"] for cost in told.values())
    assert not nothing


def test_two_workers_time_a_step_of_a_plain_optimizer_without_exchange(tmp_path):
    (tmp_path / "models.py").write_text(MODEL)
    model, numbers = f"{tmp_path / 'models.py'}:small", tmp_path / "advice.json"
    words = ["--model", model, "--methods", "bf16", "--repeats", "1", "--json", str(numbers)]
    told = launch("advises.py", *words).succeeded()
    assert "2 workers on this link" in told.text
    record = json.loads(numbers.read_text())
    assert record["compute"]["forward"] > 0
    assert [each["spec"] for each in record["methods"]].count("bf16") == 1


def test_started_workers_are_not_described_as_well():
    options = mock.Mock(workers=8, per_host=1, link=None, plot=None)
    with pytest.raises(ValueError, match="2 workers were started"):
        situation.wanted(options, 2)
    options.workers = None
    assert situation.wanted(options, 2) == situation.Wanted(2, 1, None)
