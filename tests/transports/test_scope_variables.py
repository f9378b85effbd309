"""Workers of a MultiWorkerMirroredStrategy that make other variables are told which and whose."""

import re
from unittest import mock

import pytest
import tensorflow as tf
from faulty import faulty, last

from grace_tf.cli import launcher
from grace_tf.transports import scope_variables
from grace_tf.transports.lifeline import tensorflow_engine

SAID = {
    "width": r"Workers cannot train together, variable \d of the strategy's scope is \S*kernel "
    r"\(float32 \(8, 5\)\) on worker 0 and \S*kernel \(float32 \(8, 6\)\) on worker 1: make and",
    "optimizer": r"Workers cannot train together, the class of the optimizer is GraceSGD on worker "
    r"0 and GraceAdam on worker 1: make and compile the same model on every worker",
    # As worker 1 compiles, worker 0 is in a step.
    "again": r"Workers cannot go on: worker 1 of 2 makes a variable \(\w+\), but worker 0 runs "
    r"something else, such as a step; all workers must make, compile and train the same models",
}


@pytest.mark.parametrize("fault", SAID)
def test_what_one_worker_makes_otherwise_is_named_on_both(fault):
    code, printed, said = faulty("strategy", fault, program="compiled.py")
    assert code not in (0, launcher.TIMED_OUT), said
    assert "trained" not in printed
    for rank in "01":
        assert re.match(SAID[fault], last(said[rank])), said


def test_the_others_name_worker_0_which_waits_for_them_as_it_compiles_again():
    code, _, said = faulty("strategy", "again", "0", program="compiled.py")
    assert code not in (0, launcher.TIMED_OUT), said
    sentence = re.sub("worker ([01])", lambda it: f"worker {1 - int(it[1])}", SAID["again"])
    for rank in "01":
        assert re.match(sentence, last(said[rank])), said


def test_a_rate_that_worker_0_s_replaces_is_told_by_the_worker_that_had_another():
    code, printed, said = faulty("strategy", "rate", program="compiled.py")
    assert code == 0, said
    assert printed.count("trained") == 2
    told = (
        r"The learning rate is 0\.1 on worker 0 and 0\.2 on worker 1 of 2, which takes worker 0's"
    )
    assert [len(re.findall(told, "\n".join(said[rank]))) for rank in "01"] == [0, 1], said


def test_a_worker_killed_before_the_scope_is_named_in_the_last_line():
    code, _, said = faulty("strategy", "killed", program="compiled.py")
    assert code not in (0, launcher.TIMED_OUT), said
    assert re.fullmatch(
        r"Worker 1 of 2 cannot go on, worker 0 did not come to strategy\.scope\(\): it was killed, "
        r"crashed or stopped before, or lost its machine; start all of them again\.",
        last(said["1"]),
    ), said


@pytest.mark.parametrize("job, worker", [("worker", 2), ("chief", 0)])
def test_the_worker_that_tensorflow_does_not_hear_is_found_in_its_words(job, worker):
    task = 1 if job == "worker" else 0
    text = (
        f"Collective ops is aborted by: Error reported from /job:{job}/task:{task}: The following "
        "tasks are unhealthy (stopped sending heartbeats):"
    )
    extended = mock.Mock()
    cluster = extended._container_strategy().cluster_resolver.cluster_spec()
    cluster.as_dict.return_value = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    error = tf.errors.UnavailableError(None, None, text)
    assert scope_variables._unheard(extended, error) == worker
    other = tf.errors.UnavailableError(None, None, "Failed to send RPC to coordination service.")
    assert scope_variables._unheard(extended, other) is None


def test_collectives_of_other_shapes_have_met_another_workers():
    met = tf.errors.InvalidArgumentError(
        None, None, "Shape mismatch in the collective instance 100. Op at device"
    )
    own = tf.errors.InvalidArgumentError(None, None, "Incompatible shapes: [8] vs. [9]")
    assert tensorflow_engine.may_have_failed(met)
    assert not tensorflow_engine.may_have_failed(own)
