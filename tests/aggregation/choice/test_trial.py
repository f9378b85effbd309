"""What "auto" decides, with simulated networks in place of clocks."""

import math
import statistics

import numpy as np
import pytest

from grace_tf.aggregation.choice import trial as subject
from grace_tf.aggregation.choice.trial import Trial

ARMS = ("none", "bf16", "codes of 8 bits", "codes of 4 bits")
NONE, HALF, EIGHT, FOUR = range(4)
# Seconds of a step by arm: bytes over the link beside backward, and the codec.
SLOW = (8.4, 4.3, 2.2, 1.2)  # 100 Mbit/s
MIDDLE = (0.95, 0.55, 0.36, 0.31)  # 1 Gbit/s
FAST = (0.20, 0.19, 0.22, 0.25)  # 10 Gbit/s
SAME = (0.2, 0.2, 0.2, 0.2)
TRIED = 140  # steps after which something is chosen


class Simulated:
    """A training whose steps take `seconds(arm, step)`."""

    def __init__(self, seconds, blocks=None, trial=None):
        self.seconds, self.trial = seconds, trial or Trial(len(ARMS), baselines=2)
        self.step, self.arms, self.total = 0, [], 0.0
        self._blocks = blocks

    def take(self, steps):
        """Steps, as a tuner times them."""
        end = self.step + steps
        while self.step < end:
            blocks = self._blocks or self.trial.begin()
            medians = []
            for block in blocks:
                times = [self._one(block.arm) for _ in range(block.steps)]
                medians.append(statistics.median(times[1:]))
            self._blocks = self.trial.after(medians)
        return self

    def _one(self, arm):
        took = self.seconds(arm, self.step)
        self.step, self.total = self.step + 1, self.total + took
        self.arms.append(arm)
        return took

    @property
    def chosen(self):
        return self.trial.decision.arm


def constant(times):
    return lambda arm, step: times[arm]


def jittered(times, seed, width=0.3):
    draws = np.random.default_rng(seed)
    return lambda arm, step: times[arm] * (1 + width * draws.uniform(-1, 1))


@pytest.mark.parametrize(
    "times, arm", [(SLOW, FOUR), (MIDDLE, FOUR), (FAST, HALF), (SAME, NONE), (FAST[::-1], EIGHT)]
)
def test_the_fastest_arm_is_chosen_and_of_equal_ones_the_plainest(times, arm):
    assert Simulated(constant(times)).take(TRIED).chosen == arm


@pytest.mark.parametrize("times", [SLOW, MIDDLE, FAST, SAME])
@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_steps_cost_at_most_two_percent_more_than_the_best_baseline(times, seed):
    training = Simulated(jittered(times, seed, 0.1)).take(1000)
    best = min(times[NONE], times[HALF]) * training.step
    assert training.total <= 1.02 * best
    if min(times) < 0.8 * min(times[:2]):  # something to be gained: nine tenths of it are
        assert best - training.total >= 0.9 * (best - min(times) * training.step)


@pytest.mark.parametrize("seed", range(6))
def test_times_that_are_30_percent_off_either_way_do_not_hide_a_large_gain(seed):
    assert Simulated(jittered(SLOW, seed)).take(TRIED).chosen == FOUR


@pytest.mark.parametrize("before, after", [(FAST, SLOW), (SLOW, FAST), (MIDDLE, FAST)])
def test_a_link_that_changes_is_followed_within_600_steps(before, after):
    def seconds(arm, step):
        return (before if step < 1000 else after)[arm]

    training = Simulated(seconds).take(1600)
    assert training.arms[1590] == min(range(4), key=after.__getitem__)


@pytest.mark.parametrize("at", range(40, 180, 20))
def test_a_link_that_changes_while_methods_are_compared_is_followed_too(at):
    def seconds(arm, step):
        return (FAST if step < at else SLOW)[arm]

    assert Simulated(seconds).take(at + 400).chosen == FOUR


def test_steps_that_take_longer_between_others_are_compared_again_once():
    trial = Trial(len(ARMS), baselines=2)

    def seconds(arm, step):
        return MIDDLE[arm] * (1.0 if trial._phase == "watch" else 2.0)

    training = Simulated(seconds, trial=trial).take(2000)
    warm_ups = sum(
        training.arms[i : i + 8] == [HALF] * 4 + [NONE] * 4 for i in range(training.step - 8)
    )
    assert (training.chosen, warm_ups) == (FOUR, 2)


def test_a_slow_start_decides_nothing():
    """The first steps of an arm load kernels and fill pipelines."""
    seen = set()

    def seconds(arm, step):
        first = arm not in seen
        seen.add(arm)
        return 30.0 if first else MIDDLE[arm]

    assert Simulated(seconds).take(TRIED).chosen == FOUR


def test_a_gain_below_three_percent_is_not_worth_a_codec():
    assert Simulated(constant((0.3, 0.2, 0.198, 0.197))).take(TRIED).chosen == HALF


def test_a_gain_that_noise_explains_is_none():
    draws = np.random.default_rng(7)
    chosen = []
    for _ in range(40):
        seed = int(draws.integers(1 << 30))
        chosen.append(Simulated(jittered((0.3, 0.2, 0.199, 0.199), seed, 0.1)).take(TRIED).chosen)
    assert chosen.count(HALF) >= 34  # 5 % may be wrong by the confidence alone, of each of two


def test_a_rival_that_leads_twice_takes_over_and_at_most_three_times():
    trial = Trial(len(ARMS), baselines=2)

    def seconds(arm, step):
        # The lead changes as soon as it is followed: a network that fools every choice.
        return 0.21 if trial.decision is not None and trial.decision.arm == arm else 0.2

    training = Simulated(seconds, trial=trial).take(2000)
    assert trial.saved[3] == subject.SWITCHES
    arm = training.chosen
    training.take(4000)
    assert (training.chosen, trial.saved[3]) == (arm, subject.SWITCHES)


def test_a_resumed_training_takes_the_arms_that_it_would_have_taken():
    training = Simulated(constant(MIDDLE)).take(400)
    saved = training.trial.saved
    blocks = training._blocks
    again = Trial(len(ARMS), baselines=2)
    assert again.resume(*saved) == blocks
    other = Simulated(constant(MIDDLE), blocks, again).take(700)
    begun = training.step
    training.take(700)
    assert other.arms == training.arms[begun:]


def test_a_block_that_was_not_timed_decides_nothing():
    training = Simulated(constant(MIDDLE)).take(TRIED)
    before = training.chosen
    blocks = training.trial.after([math.nan] * len(training._blocks))
    assert training.chosen == before
    assert [block.arm for block in blocks][:1] == [before]


def test_equal_times_decide_alike_whoever_measured_them():
    """All workers go on with the slowest one's times, whatever their order."""
    draws = np.random.default_rng(3)
    table = [[MIDDLE[a] * draws.uniform(0.7, 1.3) for a in range(4)] for _ in range(8)]
    found = set()
    for order in (range(8), range(7, -1, -1), draws.permutation(8)):
        slowest = [max(table[w][a] for w in order) for a in range(4)]
        found.add(Simulated(constant(slowest)).take(TRIED).trial.saved)
    assert len(found) == 1


def test_further_arms_are_looked_at_without_those_before():
    trial = Trial(len(ARMS), baselines=2)
    trial.pruned = {EIGHT, FOUR}
    assert [block.arm for block in trial.begin()] == [HALF, NONE, HALF]
    trial.after([9.9, SLOW[NONE], SLOW[HALF]])
    assert trial.decision.arm == HALF
    trial.pruned = {NONE, EIGHT}
    training = Simulated(constant(SLOW), trial.widened(), trial).take(1)
    assert set(training.arms) == {FOUR}
    assert training.take(20).chosen == FOUR


def test_further_arms_are_compared_with_the_others_anew_after_a_watch():
    trial = Trial(len(ARMS), baselines=2)
    trial.pruned = {EIGHT, FOUR}
    Simulated(constant(SLOW), trial=trial).take(200)
    trial.pruned = {EIGHT}
    assert [block.arm for block in trial.widened()] == [HALF, NONE, HALF, FOUR]


def test_the_first_watch_after_further_arms_came_notices_another_network():
    """It compares the times with those of the comparison, as in any training."""
    trial = Trial(len(ARMS), baselines=2)
    trial.pruned = {EIGHT, FOUR}
    trial.after([9.9, SLOW[NONE], SLOW[HALF]][: len(trial.begin())])
    trial.pruned = {NONE, EIGHT}
    training = Simulated(lambda arm, step: SLOW[arm] * (1 + (step > 8)), trial.widened(), trial)
    training.take(10)  # the look, and the whole watch
    assert trial.drifted


@pytest.mark.parametrize("rival, first", [(1.3, 300), (2.1, 50)])
def test_a_rival_that_is_much_slower_is_compared_in_the_long_run_only(rival, first):
    """A rival of more than `DISTANT` times is never compared, so its watch has one block only."""
    training = Simulated(constant((9.0, rival, 9.0, 1.0))).take(1)
    assert training._blocks[0].steps == first
    assert (len(training._blocks) == 1) == (rival > subject.DISTANT)


def test_a_step_with_one_arm_alone_has_no_rival():
    trial = Trial(len(ARMS), baselines=2)
    trial.pruned = {NONE, EIGHT, FOUR}
    training = Simulated(constant(SLOW), trial=trial).take(TRIED)
    assert (training.chosen, trial.decision.rival) == (HALF, HALF)
