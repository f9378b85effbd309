"""Schedules in specs and as objects, and their stages in an Aggregator, eagerly and traced."""

import json
import logging
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from schedule_cases import FIRSTS, SPEC, STEPS, gradients_of

import grace_tf
from grace_tf import schedules
from grace_tf.aggregation.schedule_stages import _LOG
from grace_tf.core import registry
from grace_tf.line.plan import make_plan
from grace_tf.line.settings import from_config, settings
from grace_tf.testing.workers import Workers

STAGES = ("none", "powersgd:rank=1", "powersgd:rank=2", "topk:ratio=0.1")

TWO = "topk:ratio=0.2@0/0.1@9"

ROUND_TRIPS = {
    "topk:ratio=0.25@0/0.06@100/0.01@200": "topk:ratio=0.25@0/0.06@100/0.01@200",
    "topk:ratio=0.25 @ 0 / 0.25@50/ 0.06@100": "topk:ratio=0.25@0/0.06@100",
    "topk:ratio=0.05@0": "topk:ratio=0.05",
    "topk:ratio=0.001,warmup=400": (
        "topk:ratio=0.25@0/0.0629@100/0.0158@200/0.00398@300/0.001@400"
    ),
    "qsgd:bits=8@0/4@5,block=512@0/none@7": "qsgd:bits=8@0/4@5,block=512@0/none@7",
    "topk:ratio=0.05,dense=1000": "none@0;topk:ratio=0.05@1000",
    "topk:ratio=0.06,dense=10,warmup=8": (
        "none@0;topk:ratio=0.25@10;topk:ratio=0.175@12;topk:ratio=0.122@14;"
        "topk:ratio=0.0857@16;topk:ratio=0.06@18"
    ),
    "none@0;powersgd:rank=2@1000": "none@0;powersgd:rank=2@1000",
    "topk:ratio=0.1@0/0.05@10|values=fp16": "topk:ratio=0.1@0/0.05@10|values=fp16",
    "topk|values=qsgd:bits=8@0/2@20": (
        "topk|values=qsgd:bits=8,rounding=nearest@0;topk|values=qsgd:bits=2,rounding=nearest@20"
    ),
}


@pytest.mark.parametrize("spec", ROUND_TRIPS)
def test_a_spec_reads_and_tells_the_same(spec):
    made = grace_tf.get(spec)
    assert str(made) == ROUND_TRIPS[spec]
    assert grace_tf.get(str(made)) == made
    wanted = settings(spec)
    assert from_config(json.loads(json.dumps(wanted.config()))) == wanted


@pytest.mark.parametrize(
    "given, spec",
    [
        (schedules.dense_first(1000, "topk"), "topk:dense=1000"),
        (schedules.piecewise({0: "none", 5: "powersgd:rank=2"}), "none@0;powersgd:rank=2@5"),
        (schedules.constant("topk"), "topk"),
        (
            schedules.dense_first(5, grace_tf.get("topk:ratio=0.2@0/0.1@9")),
            "none@0;topk:ratio=0.2@5;topk:ratio=0.1@9",
        ),
        (grace_tf.get("topk", ratio=schedules.piecewise({0: 0.2, 9: 0.1})), TWO),
        (grace_tf.get("topk", ratio=schedules.warmup(400, 0.001)), "topk:ratio=0.001,warmup=400"),
        (grace_tf.get("topk", warmup=400, ratio=0.001), "topk:ratio=0.001,warmup=400"),
        (grace_tf.get(TWO).then(values="qsgd"), f"{TWO}|values=qsgd:rounding=nearest"),
    ],
)
def test_objects_and_specs_say_the_same(given, spec):
    assert settings(given) == settings(spec)
    assert settings({"a.*": given, ".*": "none"}) == settings({"a.*": spec, ".*": "none"})


def test_the_warm_up_is_the_papers():
    made = schedules.warmup(4, 0.001)
    assert made.boundaries == (0, 1, 2, 3, 4)
    assert made.values == (0.25, 0.0629, 0.0158, 0.00398, 0.001)
    assert [made.at(step) for step in (0, 3, 4, 99)] == [0.25, 0.00398, 0.001, 0.001]


REFUSED = {
    "topk:ratio=0.25@0/0.06": r"A schedule is written value@step/value@step, not '0.25@0/0.06'\.",
    "topk:ratio=0.25@5/0.06@10": r"begin at step 0 and at increasing steps after it, not at 5, 10",
    "topk:ratio=0.2@0/0.06@20/0.01@10": r"increasing steps after it, not at 0, 20, 10\.",
    "topk:ratio=0.2@0/0.06@0": r"Two stages of '0.2@0/0.06@0' begin at step 0\.",
    "topk:ratio=2@0/0.1@5": r"topk: ratio is a fraction in \(0, 1\], not 2\.",
    "topk@0;qsdg@5": r"Unknown compressor 'qsdg'; .*did you mean 'qsgd'\?",
    "topk;qsgd@5": r"A schedule is written spec@step;spec@step, not 'topk;qsgd@5'\.",
    "qsgd:warmup=100": r"qsgd has no ratio, and warmup is a schedule of the ratio\.",
    "topk:ratio=0.5,warmup=100": r"goes from the ratio 0.25 down, so it cannot end at 0.5\.",
    "topk:warmup=2": r"A warm-up: its number of steps is at least 4, not 2\.",
    "topk:ratio=0.1@0/0.01@5,warmup=100": r"ratio is a schedule already, so warmup cannot make",
    "topk:dense=soon": r"topk: dense is a number of steps, not 'soon'\.",
    "topk:warmap=100": r"topk has no hyperparameter 'warmap'; it has: ratio",
}


@pytest.mark.parametrize("spec", REFUSED)
def test_what_is_no_schedule_is_refused_in_a_sentence(spec):
    with pytest.raises((ValueError, TypeError), match=REFUSED[spec]):
        settings(spec)


def test_what_is_beside_a_schedule_is_refused():
    with pytest.raises(TypeError, match="is a schedule; give its hyperparameters"):
        settings(schedules.dense_first(5, "topk"), ratio=0.1)
    with pytest.raises(ValueError, match="'residual' needs a compressor that is nonexpansive"):
        settings("topk@0;qsgd@9", memory="residual")
    with pytest.raises(TypeError, match=r"given as \{first step: value\}"):
        schedules.piecewise([0.1, 0.2])


def test_memories_of_stages():
    def told(spec, **keywords):
        return [stage.routes[0][2].name for _, stage in settings(spec, **keywords).stages]

    assert told("topk:dense=5") == ["none", "residual"]
    assert told("topk:dense=5", memory="residual") == ["none", "residual"]
    # A dense stage sends what the one before it has kept.
    assert told("topk@0;none@5;topk@9") == ["residual"] * 3
    assert told("topk@0;qsgd@5;none@7") == ["residual", "none", "none"]
    assert settings("topk@0;none@5").config()["memory"] == "auto"
    assert settings("topk@0;none@5", memory="none").config()["memory"] == "none"


@pytest.mark.parametrize(
    ("spec", "memory", "kept"),
    [
        ("topk@0;signum@6", "residual@0;momentum@6", ["residual", "momentum"]),
        ("signum@0;signsgd@6", "momentum@0;none@6", ["momentum", "none"]),
        ("signum@0;qsgd@6", "momentum@0;none@6", ["momentum", "none"]),
        ("signum@0;powersgd@6", "momentum@0;residual@6", ["momentum", "residual"]),
        (
            "signum:momentum=0.5@0;signum@6",
            "momentum:beta=0.5@0;momentum@6",
            ["momentum", "momentum"],
        ),
        ("signum@0;none@3;topk@6", "momentum@0;residual@6", ["momentum", "momentum", "residual"]),
    ],
)
def test_the_configuration_keeps_the_memory_of_each_stage(spec, memory, kept):
    for given in (spec, {"a.*": spec, ".*": "qsgd"}):
        made = settings(given)
        config = made.config()
        assert from_config(config) == made
        assert (config["memory"] if given == spec else config["memory"]["a.*"]) == memory
        assert [stage.routes[0][2].name for _, stage in made.stages] == kept


def test_memories_may_follow_each_other_without_a_schedule_of_compressors():
    made = settings("topk", memory="residual@0;none@4")
    assert [first for first, _ in made.stages] == [0, 4]
    assert [stage.routes[0][2].name for _, stage in made.stages] == ["residual", "none"]
    assert settings("topk", memory=schedules.piecewise({0: "residual", 4: "none"})) == made
    with pytest.raises(ValueError, match="'residual' needs a compressor that is nonexpansive"):
        settings("topk@0;qsgd@9", memory="none@0;residual@4")
    with pytest.raises(ValueError, match="A schedule is written spec@step;spec@step"):
        settings("topk", memory="residual;none@4")


def test_a_memory_that_claims_what_is_dense_has_the_dense_stages_too():
    class Claiming(grace_tf.Memory):
        claims_dense = True

    with mock.patch.dict(registry._MEMORIES):
        memory = grace_tf.register("claiming_for_the_test")(Claiming)()
        made = settings("topk:dense=5", memory=memory, min_elements=1)
        assert [stage.routes[0][2] for _, stage in made.stages] == [memory] * 2
        for _, stage in made.stages:
            (group,) = make_plan(stage, ["v"], [tf.TensorSpec([9])], [0]).groups
            assert group.memory == memory
            assert group.claimed == (str(group.compressor) == "none")


def made(spec=SPEC, **keywords):
    """An Aggregator with a variable, and its step."""
    variables = [tf.Variable(tf.zeros([12, 10]), name="v")]
    aggregate = grace_tf.Aggregator(spec, min_elements=1, seed=4, **keywords)
    return aggregate, lambda *grads: aggregate(grads, variables)


class AggregatorTest(tf.test.TestCase):
    def by_hand(self):
        """The aggregates of the stages, each set where it begins."""
        workers, totals = Workers(1, STAGES[0], seed=4), []
        for i in range(STEPS):
            spec = STAGES[max(n for n, first in enumerate(FIRSTS) if first <= i)]
            workers.settings = settings(spec, min_elements=1, seed=4)
            ((total,),) = workers.step([gradients_of(i)])
            totals.append(total)
        return totals

    def test_stages_begin_exactly_where_they_are_told_to(self):
        wanted = self.by_hand()
        eager, step = made()
        traced, own = made()
        function = tf.function(own, autograph=False)
        for i in range(STEPS):
            (total,) = step(*gradients_of(i))
            self.assertAllEqual(total, wanted[i], i)
            self.assertAllEqual(function(*gradients_of(i))[0], wanted[i], i)
        self.assertEqual(function.experimental_get_tracing_count(), 1)
        self.assertEqual(eager.state.step, STEPS)
        for name, rows in eager.state.arrays().items():
            self.assertAllEqual(rows, traced.state.arrays()[name], name)

    def test_in_a_loop_of_the_users_own_function(self):
        wanted = self.by_hand()
        _, step = made()
        grads = tf.stack([gradients_of(i)[0] for i in range(STEPS)])

        @tf.function
        def several(grads):
            totals = tf.TensorArray(tf.float32, STEPS)
            for i in tf.range(STEPS):
                totals = totals.write(i, step(grads[i])[0])
            return totals.stack()

        self.assertAllEqual(several(grads), wanted)

    def test_bytes_and_log_lines_are_those_of_the_stage(self):
        # 120 floats; (12 + 10)·rank floats; 12 values and 3 words of indices; a flag of 4
        sent = (484, 92, 180, 64)
        for traced in (False, True):
            aggregate, step = made()
            step = tf.function(step, autograph=False) if traced else step
            with self.assertLogs(_LOG, logging.INFO) as said:
                for i in range(STEPS):
                    step(*gradients_of(i))
                    number = max(n for n, first in enumerate(FIRSTS) if first <= i)
                    self.assertEqual(aggregate.bytes_per_step, sent[number])
            self.assertEqual(
                [record.getMessage() for record in said.records],
                [
                    f"Step {first}: stage {n + 1} of 4 of the schedule begins, {stage}, {nbytes} "
                    "bytes a step and worker."
                    for n, (first, stage, nbytes) in enumerate(
                        zip(FIRSTS, map(str, map(grace_tf.get, STAGES)), sent)
                    )
                ],
            )

    def test_a_step_that_is_not_finite_is_not_counted(self):
        aggregate, step = made("topk:ratio=0.5@0/0.1@2")
        function = tf.function(step, autograph=False)
        poison = tf.fill([12, 10], np.nan)
        counts = []
        for grad in (gradients_of(0)[0], poison, poison, gradients_of(1)[0], gradients_of(2)[0]):
            (total,) = function(grad)
            finite = np.isfinite(total.numpy()).all()
            counts.append(np.count_nonzero(total) if finite else -1)
        self.assertEqual(counts, [60, -1, -1, 60, 12])
        self.assertEqual(aggregate.state.step, 3)

    def test_nothing_is_lost_at_a_boundary(self):
        spec = "topk:ratio=0.5@0;topk:ratio=0.1@3;powersgd:rank=1@6;none@9"
        workers = Workers(3, spec)
        grads, totals = np.zeros([12, 10]), np.zeros([12, 10])
        for i in range(10):
            mine = [gradients_of(i, w) for w in range(3)]
            grads += np.mean([each[0].numpy() for each in mine], 0, np.float64)
            totals += workers(mine)[0][0].numpy()
            kept = workers.state.arrays()["0/memory/residual"].mean(0)
            self.assertAllClose(totals + kept, grads, atol=1e-5)
            self.assertEqual(bool(np.any(kept)), i < 9)  # the dense stage has sent what was kept
        self.assertEqual(workers.bytes_per_step, 484)

    def test_without_a_schedule_there_is_no_switch(self):
        def operations(spec):
            _, step = made(spec)
            graph = tf.function(step, autograph=False).get_concrete_function(*gradients_of(0)).graph
            return [op.type for op in graph.get_operations()]

        self.assertEqual(operations("topk:ratio=0.1@0"), operations("topk:ratio=0.1"))
        self.assertNotIn("Case", operations("topk"))
        self.assertEqual(operations("topk:ratio=0.2@0/0.1@9").count("Case"), 1)

    def test_xla(self):
        wanted = self.by_hand()
        _, step = made()
        function = tf.function(step, autograph=False, jit_compile=True)
        for i in range(STEPS):
            self.assertAllClose(function(*gradients_of(i))[0], wanted[i], rtol=1e-4, atol=1e-5)

    def test_routes_have_schedules_of_their_own(self):
        variables = [tf.Variable(tf.zeros([20]), name=name) for name in "abc"]
        routes = {"a": "topk:ratio=0.5@0/0.1@2", "b": schedules.dense_first(1, "topk:ratio=0.2")}
        aggregate = grace_tf.Aggregator(routes, min_elements=1)
        self.assertEqual([first for first, _ in aggregate.settings.stages], [0, 1, 2])
        counts = []
        for _ in range(3):
            totals = aggregate([tf.range(1.0, 21.0)] * 3, variables)
            counts.append([np.count_nonzero(total) for total in totals])
        self.assertEqual(counts, [[10, 20, 20], [10, 4, 20], [2, 4, 20]])

    def test_a_step_of_small_variables_alone_leaves_the_stage_as_it_is(self):
        large, small = tf.Variable(tf.zeros([2000])), tf.Variable(tf.zeros([3]))
        aggregate = grace_tf.Aggregator("none@0;topk:ratio=0.1@1")
        with self.assertLogs(_LOG, "INFO") as told:
            for _ in range(3):
                aggregate([tf.range(2000.0)], [large])
                aggregate([tf.range(3.0)], [small])
        self.assertLen(told.output, 2)  # that each of the two stages begins
        self.assertEqual(aggregate._stages.number, 1)

    def test_all_reduce(self):
        variable = tf.Variable(tf.zeros([20]))
        counts = []
        for _ in range(3):
            (total,) = grace_tf.all_reduce(
                [tf.range(1.0, 21.0)], [variable], "topk:ratio=0.5@0/0.1@2", min_elements=1
            )
            counts.append(np.count_nonzero(total))
        self.assertEqual(counts, [10, 10, 2])


def test_the_keys_belong_to_no_method():
    class Warm(grace_tf.Compressor):
        warmup: int = 1

    with pytest.raises(ValueError, match="the field 'warmup' is reserved for the doors"):
        grace_tf.register("warm_for_the_test")(Warm)
    assert "warm_for_the_test" not in registry.available()
