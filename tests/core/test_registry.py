"""Names, specs, recipes, and what is said of wrong ones."""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from this_keras import keras

import grace_tf
from grace_tf.compressors.qsgd import QSGD
from grace_tf.compressors.topk import TopK
from grace_tf.core import registry
from grace_tf.core.memory import Memory
from grace_tf.line.settings import from_config
from grace_tf.line.settings import settings as door_settings
from grace_tf.memories.residual import Residual
from grace_tf.testing import Workers

SPECS = [spec for entry in registry.entries() for spec in (entry.name, *entry.examples)]


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_COMPRESSORS", dict(registry._COMPRESSORS))
    monkeypatch.setattr(registry, "_MEMORIES", dict(registry._MEMORIES))


@pytest.mark.parametrize("spec", SPECS)
def test_specs_round_trip(spec):
    compressor = grace_tf.get(spec)
    assert grace_tf.get(str(compressor)) == compressor
    assert hash(grace_tf.get(str(compressor))) == hash(compressor)


def test_specs_name_what_differs_from_the_defaults():
    assert str(TopK(ratio=0.01)) == "topk"
    assert (
        str(QSGD(bits=8, block=None, rounding="nearest"))
        == "qsgd:bits=8,block=none,rounding=nearest"
    )
    composite = TopK(0.1).then(values=QSGD(rounding="nearest"), indices=grace_tf.get("none"))
    assert str(composite) == "topk:ratio=0.1|values=qsgd:rounding=nearest|indices=none"
    assert grace_tf.get(str(composite)) == composite


@settings(deadline=None, max_examples=50)
@given(
    st.builds(
        QSGD,
        bits=st.integers(2, 16),
        levels=st.none() | st.integers(1, 2**15 - 1),
        block=st.none() | st.integers(1, 100).map(lambda n: 32 * n),
        norm=st.sampled_from(["max", "l2"]),
        rounding=st.sampled_from(["stochastic", "nearest"]),
    ),
    st.floats(0, 1, exclude_min=True),
)
def test_any_spec_round_trips(quantiser, ratio):
    composite = TopK(ratio).then(values=quantiser)
    assert grace_tf.get(str(composite)) == composite


def test_values_are_read_in_any_case():
    assert grace_tf.get("qsgd:block=None") == grace_tf.get("qsgd:block=none") == QSGD(block=None)
    assert grace_tf.get(" topk : ratio = 0.1 ") == TopK(0.1)
    assert (
        grace_tf.get("topk", ratio=0.1) == grace_tf.get("topk:ratio=0.1") == grace_tf.get(TopK(0.1))
    )


@pytest.mark.parametrize(
    ("spec", "error", "sentence"),
    [
        ("nosuch", ValueError, "Unknown compressor 'nosuch'; available: .*qsgd"),
        ("", ValueError, "Unknown compressor ''"),
        ("topk:rate=0.1", TypeError, "topk has no hyperparameter 'rate'; it has: ratio"),
        ("none:ratio=0.1", TypeError, "none has no hyperparameter 'ratio'; it has: none"),
        ("topk:ratio=0", ValueError, "ratio is a fraction in"),
        ("topk:ratio=1.5", ValueError, "ratio is a fraction in"),
        ("topk:ratio=nan", TypeError, "ratio is a finite number"),
        ("topk:ratio=true", TypeError, "ratio is a finite number"),
        ("topk:ratio=many", TypeError, "ratio is a finite number, not 'many'"),
        ("topk:ratio", ValueError, "A spec is written name:key=value"),
        ("topk:", ValueError, "A spec is written name:key=value"),
        ("topk:ratio=0.1,ratio=0.2", ValueError, "'ratio' is given twice"),
        ("qsgd:bits=0", ValueError, "bits is from 2 to 16, not 0"),
        ("qsgd:bits=40", ValueError, "bits is from 2 to 16, not 40"),
        ("qsgd:bits=4.0", TypeError, "bits is an integer"),
        ("qsgd:levels=0", ValueError, "levels is from 1 to 32767"),
        ("qsgd:block=33", ValueError, "block is a multiple of 32 or none, not 33"),
        ("qsgd:norm=l3", ValueError, "norm is one of max, l2, minmax, not 'l3'"),
        ("qsgd:rounding=up", ValueError, "is one of auto, stochastic, stratified, nearest, not"),
        ("randomk:ratio=-1", ValueError, "randomk: ratio is a fraction"),
        ("threshold:threshold=-1", ValueError, "threshold is at least 0"),
        ("threshold:capacity=2", ValueError, "capacity is a fraction"),
        ("powersgd:rank=0", ValueError, "rank is at least 1, not 0"),
        ("topk|values", ValueError, "A stage is written part=spec"),
        ("topk|values=nosuch", ValueError, "Unknown compressor 'nosuch'"),
    ],
)
def test_wrong_specs_are_told_in_a_sentence(spec, error, sentence):
    with pytest.raises(error, match=sentence):
        grace_tf.get(spec)


def test_wrong_arguments_are_told_in_a_sentence():
    with pytest.raises(TypeError, match="A compressor is an instance, a name, a spec or a mapping"):
        grace_tf.get(3)
    with pytest.raises(
        TypeError, match="is an instance; give its hyperparameters to its constructor"
    ):
        grace_tf.get(TopK(0.1), ratio=0.2)
    with pytest.raises(TypeError, match="'ratio' is given both in the spec"):
        grace_tf.get("topk:ratio=0.1", ratio=0.2)


def test_a_distance_between_comparisons_fits_into_an_integer_of_tensorflow():
    assert door_settings("qsgd", check_every=2**63 - 1).check_every == 2**63 - 1
    for wrong in (2**70, 2**63, -1):
        with pytest.raises(ValueError, match=f"check_every is from 0 to .*, not {wrong}"):
            door_settings("qsgd", check_every=wrong)


@pytest.mark.parametrize(
    ("call", "end"),
    [
        (lambda: grace_tf.get("qgsd"), "; did you mean 'qsgd'?"),
        (lambda: grace_tf.get("TopK"), "; did you mean 'topk'?"),
        (lambda: grace_tf.get("nothing_like_it"), f"{registry.available()[-1]}."),
        (
            lambda: grace_tf.get("topk:ration=0.1"),
            "; it has: ratio, row_ratio; did you mean 'ratio'?",
        ),
        (lambda: grace_tf.get("topk:mem=none"), "; it has: ratio, row_ratio."),
        (lambda: door_settings("topk", mem="none"), "average_logs; did you mean 'memory'?"),
        (
            lambda: door_settings("topk", min_element=1),
            "_logs; did you mean 'min_elements'?",
        ),
        (lambda: registry.get_memory("residuals"), "; did you mean 'residual'?"),
    ],
)
def test_the_name_that_was_meant(call, end):
    with pytest.raises((ValueError, TypeError)) as raised:
        call()
    assert str(raised.value).endswith(end)


def test_the_keywords_that_are_told_are_those_of_wrap():
    kinds = inspect.signature(grace_tf.wrap).parameters.values()
    assert registry.KEYWORDS == tuple(p.name for p in kinds if p.kind is p.KEYWORD_ONLY)
    with pytest.raises(
        TypeError, match="; it has: ratio, row_ratio; wrap.. itself takes: memory, .*did you"
    ):
        grace_tf.wrap(keras.optimizers.SGD(0.1), "topk", mem="none")


def test_memories_by_name():
    assert registry.get_memory("residual") == Residual()
    assert registry.get_memory(Residual()) == Residual()
    assert registry.memories() == sorted(registry.memories()) and "none" in registry.memories()
    with pytest.raises(
        ValueError, match="Unknown memory 'nosuch'; available: auto, .*none, .*residual"
    ):
        registry.get_memory("nosuch")
    with pytest.raises(
        TypeError, match="The memory residual has no hyperparameter 'beta'; it has: dtype, decay"
    ):
        registry.get_memory("residual:beta=0.9")
    with pytest.raises(TypeError, match="A memory is an instance or a name, not 3"):
        registry.get_memory(3)


def test_the_memory_follows_from_recipe_and_traits(own_registry):
    assert registry.resolve("topk")[1] == "residual"
    assert registry.resolve("qsgd")[1] == "none"
    assert registry.resolve("qsgd", rounding="nearest")[1] == "residual"
    assert registry.resolve("fp16")[1] == "none"  # its recipe's, though it is nonexpansive
    assert registry.resolve("topk|values=qsgd")[1] == "residual"
    assert registry.resolve("topk|values=qsgd:rounding=stochastic")[1] == "none"

    @grace_tf.recipe("halfk", family="toy", paper="-")
    def halfk(share: float = 0.5):
        return TopK(share), "none"

    assert registry.resolve("halfk:share=0.25") == (TopK(0.25), "none")
    with pytest.raises(TypeError, match="halfk has no hyperparameter 'ratio'; it has: share"):
        grace_tf.get("halfk:ratio=0.1")


def test_registering_refuses_what_could_not_be_reached(own_registry):
    class Toy(grace_tf.Compressor):
        """A toy."""

        memory: str = "none"

    with pytest.raises(ValueError, match="the field 'memory' is a keyword of wrap"):
        grace_tf.register("toy", family="toy", paper="-")(Toy)
    for kept, what in (("inner", "reserved for the doors"), ("exchange", "a keyword of wrap")):
        with pytest.raises(ValueError, match=f"the field '{kept}' is {what}"):
            grace_tf.recipe("toy", family="toy", paper="-")(eval(f"lambda {kept}=1: None"))
    with pytest.raises(ValueError, match="The name 'topk' is taken"):
        grace_tf.register("topk", family="toy", paper="-")(
            type("Other", (grace_tf.Compressor,), {})
        )
    with pytest.raises(ValueError, match="lower-case letters, digits and _, not 'Toy-1'"):
        grace_tf.register("Toy-1", family="toy", paper="-")(
            type("Other", (grace_tf.Compressor,), {})
        )
    with pytest.raises(TypeError, match="takes a subclass of grace_tf.Compressor"):
        grace_tf.register("toy", family="toy", paper="-")(dict)
    assert "toy" not in grace_tf.available()


def test_third_party_compressors_have_specs(own_registry):
    @grace_tf.register("scaled", family="toy", paper="-")
    class Scaled(grace_tf.Compressor):
        """A toy."""

        factor: float = 1.0

    assert grace_tf.get("scaled:factor=0.25") == Scaled(0.25)
    assert str(Scaled(0.25)) == "scaled:factor=0.25"
    assert "scaled" in grace_tf.available()


def test_bug_31_what_a_compressor_lacks_is_told(own_registry):
    # GRACE raised NotImplemented, which is no exception and ends in a TypeError.
    @grace_tf.register("unfinished", family="toy", paper="-")
    class Unfinished(grace_tf.Compressor):
        """Nothing."""

    made = Unfinished()
    for missing in (lambda: made.wire(None), lambda: made.compress(None, None)):
        with pytest.raises(NotImplementedError, match="Unfinished"):
            missing()
    with pytest.raises(NotImplementedError, match="Unfinished has no one-tensor form"):
        made.decompress({}, None)


@pytest.mark.parametrize("spec", SPECS)
def test_settings_are_rebuilt_from_their_config(spec):
    made = door_settings(spec, min_elements=7, exclude="bias", seed=3)
    assert from_config(made.config()) == made


@pytest.mark.parametrize("exchange", ["auto", "gather"])
def test_an_exchange_in_configs_of_earlier_versions_is_read(exchange):
    made = door_settings("topk", seed=3)
    config = made.config()
    assert config.pop("exchange") == "auto"
    assert from_config(config) == made  # of versions that had no such keyword
    assert from_config({**config, "exchange": exchange}) == door_settings(
        "topk", seed=3, exchange=exchange
    )
    with pytest.raises(ValueError, match="exchange is one of auto, gather, two_hop, sum"):
        from_config({**config, "exchange": "ring"})


def test_settings_of_a_mapping_are_rebuilt_from_their_config():
    made = door_settings({".*bias": "none", ".*": "topk:ratio=0.1|values=fp16"})
    assert from_config(made.config()) == made
    assert isinstance(made.routes[1][2], Memory)


def test_grace_parameters_become_keywords():
    from_params = grace_tf.from_params
    assert from_params({"compressor": "topk", "memory": "residual", "compress_ratio": 0.3}) == {
        "compressor": "topk",
        "memory": "residual",
        "ratio": 0.3,
    }
    assert from_params({"compressor": "qsgd", "quantum_num": 64, "communicator": "allgather"}) == {
        "compressor": "qsgd",
        "memory": "none",
        "levels": 64,
        "norm": "l2",
        "block": None,
    }
    powersgd = from_params(
        {"compressor": "powersgd", "memory": "powersgd", "compress_rank": 2, "world_size": 8}
    )
    assert powersgd == {"compressor": "powersgd", "memory": "residual", "rank": 2}
    assert from_params({}) == {"compressor": "none", "memory": "none"}
    dgc = from_params(
        {
            "compressor": "dgc",
            "memory": "dgc",
            "compress_ratio": 0.01,
            "momentum": 0.8,
            "gradient_clipping": False,
        }
    )
    assert dgc == {"compressor": "dgc", "memory": "dgc:momentum=0.8", "ratio": 0.01}
    signum = from_params({"compressor": "signum", "momentum": 0.5})
    assert signum == {"compressor": "signum", "memory": "auto", "momentum": 0.5}
    efsignsgd = from_params({"compressor": "efsignsgd", "memory": "efsignsgd", "lr": 0.1})
    assert efsignsgd == {"compressor": "efsignsgd", "memory": "residual"}
    inceptionn = from_params({"compressor": "inceptionn", "error_bound": 1e-3})
    assert inceptionn == {"compressor": "inceptionn", "memory": "none", "error_bound": 1e-3}


@pytest.mark.parametrize("communicator", ["allreduce", "allgather", "broadcast", "all_to_all"])
def test_bug_19_every_communicator_is_taken(communicator):
    # GRACE's broadcast for torch.distributed could not be made: its rank was not passed.
    params = {"compressor": "fp16", "communicator": communicator, "world_size": 2}
    workers = Workers(2, **grace_tf.from_params(params))
    grads = [[np.float32([1, 2])], [np.float32([3, 4])]]
    np.testing.assert_array_equal(workers(grads)[1][0], [2, 3])


@pytest.mark.parametrize(
    ("params", "error", "sentence"),
    [
        ({"compressor": "nosuch"}, ValueError, "Unknown compressor"),
        ({"compressor": "topk", "memory": "nosuch"}, ValueError, "Unknown memory"),
        (
            {"compressor": "topk", "speed": 1},
            TypeError,
            "'speed' has no counterpart; known: compressor",
        ),
        (
            {"compressor": "signsgd", "memory": "residual"},
            ValueError,
            "needs a compressor that is nonexp",
        ),
        (
            {"compressor": "signsgd", "compress_ratio": 0.1},
            TypeError,
            "signsgd has no hyperparameter",
        ),
        (
            {"compressor": "powersgd", "momentum_factor": 0.9},
            TypeError,
            "'momentum_factor' cannot be taken over: GRACE adds a momentum",
        ),
        (
            {"compressor": "dgc", "memory": "dgc", "gradient_clipping": True},
            TypeError,
            "'gradient_clipping' cannot be taken over: GRACE clamps",
        ),
    ],
)
def test_wrong_grace_parameters_are_told_in_a_sentence(params, error, sentence):
    with pytest.raises(error, match=sentence):
        grace_tf.from_params(params)
