"""A fault on one of two workers ends the other with one sentence that names worker and cause."""

import re

import pytest
from faulty import faulty, last

from grace_tf.cli import launcher

AGAIN = r"; start all of them again\."
GONE = "worker 1 is gone without a word: it was killed, crashed or lost its machine"
ENDED = r"^Workers cannot go on: worker 1 of 2 ended epoch 1 after 3 steps"
UNEVEN = (
    rf"{ENDED}, but worker 0 is in step 4; all workers need equally many batches \(grace_tf\.shard "
    r"deals them out so\) and must stop at the same step\.$"
)
STOPPED = (
    rf"{ENDED}, because Fault set stop_training, but worker 0 is in step 4; all workers must stop "
    r"at the same step, for example by metrics at the end of an epoch, which fit gives all workers "
    r"alike unless average_logs=False; those of a batch are each worker's own\.$"
)

# What the last line on stderr of worker 0 says, and that of worker 1 where it can say the same.
SENTENCES = {
    "SIGKILL": [GONE + AGAIN],
    "_exit": [GONE + AGAIN],
    "SIGSTOP": [
        r"worker 1 has not answered for \d+ s: it is stopped, or its machine hangs" + AGAIN
    ],
    "raise": [f"worker 1 failed after 3 steps: ValueError: boom{AGAIN}", "^boom$"],
    "exit": [f"worker 1 left after 3 steps: it has ended its program before the others{AGAIN}"],
    "fewer batches": [UNEVEN] * 2,
    "stop_training": [STOPPED] * 2,
    "unwrapped": [r"[Ww]orker 1 .*its SGD is not wrapped"],
    # A worker may learn of the other's refusal before it has compared by itself.
    "other method": [r"Workers cannot train together, .*\(worker 1 of 2 differs from worker 0\)"]
    * 2,
}


@pytest.mark.parametrize("fault", SENTENCES)
@pytest.mark.parametrize("engine", ["group", "strategy"])
def test_the_survivor_says_whose_fault_it_was(engine, fault):
    code, printed, said = faulty(engine, fault)
    everything = "\n".join(f"[{who}] {line}" for who, lines in said.items() for line in lines)
    assert code not in (0, launcher.TIMED_OUT), everything
    assert "trained" not in printed
    for rank, sentence in enumerate(SENTENCES[fault]):
        assert re.search(sentence, last(said[str(rank)])), everything
    # Worker 0 may notice that worker 1 was killed, and end, before worker 1 itself has ended.  Then
    # the launcher says that worker 1 "failed first".
    first = r"worker \d (was )?ended .* first[.;]|worker \d failed first and (was )?ended "
    assert re.match(first, said["grace_tf"][-1]), everything
    # The last line of the launcher names worker 1, or repeats a line that names it.
    assert "orker 1" in said["grace_tf"][-1], everything


def test_a_worker_with_fewer_batches_is_told_though_nothing_tells_their_number():
    code, _, said = faulty("group", "fewer unknown")
    assert code not in (0, launcher.TIMED_OUT), said
    for rank in "01":
        assert re.search(UNEVEN, last(said[rank])), said


@pytest.mark.parametrize("engine", ["group", "strategy"])
def test_a_worker_that_stops_after_an_epoch_is_named_with_its_callback(engine):
    """Under a strategy Keras 3 waits for the others before the next epoch's first step."""
    code, printed, said = faulty(engine, "stop after an epoch")
    assert code not in (0, launcher.TIMED_OUT), said
    assert "trained" not in printed
    sentence = STOPPED.replace("epoch 1 after 3", "fit after 6").replace("step 4", "step 7")
    for rank in "01":
        assert re.search(sentence, last(said[rank])), said


@pytest.mark.parametrize("engine, fault", [("group", "SIGKILL"), ("strategy", "exit")])
def test_the_fault_may_be_worker_0_s_on_whom_tensorflow_s_services_depend(engine, fault):
    code, _, said = faulty(engine, fault, "0")
    assert code not in (0, launcher.TIMED_OUT), said
    sentence = SENTENCES[fault][0].replace("worker 1", "worker 0")
    assert re.search(f"^Worker 1 of 2 cannot go on, {sentence}$", last(said["1"])), said


@pytest.mark.parametrize("engine", ["group", "strategy"])
def test_nothing_is_said_where_nothing_is_wrong(engine):
    """Two calls of fit, after which one worker ends some time before the other."""
    code, printed, said = faulty(engine, "none")
    assert code == 0, said
    assert printed.count("trained") == 2
    for lines in said.values():
        assert not [line for line in lines if "cannot go on" in line or "StartAbort" in line]


@pytest.mark.parametrize("fault", ["raise", "exit", "SIGKILL"])
def test_a_custom_loop_ends_with_the_sentence_below_tensorflow_s_own_words(fault):
    code, _, said = faulty("loop", fault)
    assert code not in (0, launcher.TIMED_OUT)
    assert re.match(f"Worker 0 of 2 cannot go on, .*{SENTENCES[fault][0]}", said["0"][-1]), said


def test_three_workers_learn_the_cause_from_worker_0():
    code, _, said = faulty("group", "raise", workers=3)
    assert code == 1, said
    for rank in "02":
        sentence = (
            f"Worker {rank} of 3 cannot go on, worker 1 failed after 3 steps: ValueError: boom"
        )
        assert last(said[rank]).startswith(sentence), said
