"""What "auto" does with each variable of a model: rows, small ones, and those with a pattern."""

import pytest
import tensorflow as tf

from grace_tf.line.plan import make_plan
from grace_tf.line.reasons import reason
from grace_tf.line.settings import from_config, settings

PATHS = ["table", "kernel", "bias"]
SPECS = [tf.TensorSpec(shape, tf.float32) for shape in ([5000, 16], [64, 64], [64])]
ALL = "auto:quality=aggressive"  # none, bf16, qsgd:bits=8, eden, eden:bits=5, qsgd, powersgd, topk


def plans(*args, **keywords):
    """(settings, plan) of each method among which "auto" chooses; the table has rows."""
    made = settings(*args, **keywords)
    return [(stage, make_plan(stage, PATHS, SPECS, range(3), rows=[0])) for _, stage in made.stages]


def test_rows_are_compressed_by_quantisers_only():
    by_rows = {
        str(group.compressor): str(group.memory.name)
        for _, plan in plans(ALL)
        for group in plan.by_rows
    }
    # Not by powersgd and topk; bf16 rounds rows as a quantiser does.
    assert by_rows == dict.fromkeys(("bf16", "qsgd:bits=8", "eden", "eden:bits=5", "qsgd"), "none")


def test_what_a_user_names_for_rows_stays():
    found = plans({"table": "topk:ratio=0.01", ".*": ALL})
    assert all(str(plan.by_rows[0].compressor) == "topk" for _, plan in found)


def test_small_variables_stay_dense_with_every_method():
    for _, plan in plans(ALL):
        (bias,) = (lane for group in plan.groups for lane in group.lanes if lane.shape == (64,))
        assert bias.dense
    large = [plan.groups[-1].lanes[0] for _, plan in plans(ALL, min_elements=64)]
    assert {str(lane.compressor) for lane in large if lane.shape == (64,)} > {"qsgd:bits=8"}


@pytest.mark.parametrize("given", [ALL, {"kernel": ALL, ".*": "none"}])
def test_the_reason_of_a_variable_has_that_of_auto_where_auto_chooses(given):
    why = "auto: a step takes 3 ms, with bf16 5 ms"
    stage, plan = plans(given)[-1]
    found = {
        plan.paths[lane.position]: reason(stage, plan.paths[lane.position], lane, why)
        for lane in [lane for group in plan.groups for lane in group.lanes] + [*plan.sparse]
    }
    assert found["bias"] == "64 elements, fewer than min_elements=1024"
    if given == ALL:
        assert found["kernel"] == f"every variable; {why}"
        only = "every variable, but auto compresses rows with quantisers only"
        assert found["table"] == f"{only}; {why}"
    else:
        assert found["kernel"] == f"pattern 'kernel'; {why}"
        assert why not in found["table"]


def test_what_auto_has_chosen_is_no_part_of_the_configuration():
    made = settings({"kernel": ALL, ".*": "none"})
    stage = made.at(0)
    assert "chosen" not in stage.config()
    assert from_config(made.config()) == made
