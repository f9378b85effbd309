"""A short run of the fuzzer of what workers send each other."""

import fuzz_frames


def test_no_frame_ends_or_holds_up_a_worker():
    """Each kind of batch comes in jobs with a secret and without one."""
    found = fuzz_frames.fuzz(2 * len(fuzz_frames.BATCHES) * 32, seed=0, batch=32)
    kinds = {(kind.__name__, protocol) for kind, protocol in fuzz_frames.BATCHES}
    assert set(found) == {(*kind, secret) for kind in kinds for secret in ("a secret", "none")}


def test_a_training_ends_as_if_no_frame_had_come():
    undisturbed = fuzz_frames.train(0, 0)
    for secret in (None, ""):
        assert fuzz_frames.train(0, 100, secret) == undisturbed
