"""Tests of the methods that "auto" selects, with right measurements and with wrong ones."""

import itertools

import numpy as np
import pytest
from test_trial import FAST, FOUR, HALF, MIDDLE, NONE, SLOW, Simulated, constant, jittered

from grace_tf.advice.network import Collective, Cost, Network
from grace_tf.advice.timeline import Bucket
from grace_tf.aggregation.choice.agreement import joined
from grace_tf.aggregation.choice.pruning import Foreseen, decide, said
from grace_tf.aggregation.choice.trial import Trial


def foreseen(*seconds):
    micros = [round(1e6 * each) for each in seconds]
    return {arm: Foreseen(each, each, 0) for arm, each in enumerate(micros)}


@pytest.mark.parametrize(
    "seconds, arms",
    [
        ((1.0, 0.6, 0.24, 0.23, 0.2), (0, 1, 3, 4)),  # two of three, the best ones
        ((1.0, 0.6, 0.4, 0.3, 0.2), (0, 1, 4)),  # a method that is far behind the best is not tried
        ((1.0, 0.6, 0.59, 0.58), (0, 1)),  # 3 % are not enough
        ((1.0, 0.6, 0.57, 0.7), (0, 1, 2)),  # 5 % are
        ((0.5, 0.6, 0.57, 0.55), (0, 1)),  # the best baseline counts, here none
        ((1.0, 0.6, 0.4, 0.4, 0.4), (0, 1, 2, 3)),  # of equal ones the first
    ],
)
def test_two_methods_at_most_that_are_five_percent_better(seconds, arms):
    assert decide(foreseen(*seconds), 2, 10, None) == arms


def test_a_training_too_short_for_its_tracing_takes_the_baselines():
    """20 ms a step, in 10 variables: tracing takes 0.1 s, 2 s must be saved, in 100 steps."""
    assert decide(foreseen(0.1, 0.1, 0.08), 2, 10, 100) == (0, 1)
    assert decide(foreseen(0.1, 0.1, 0.08), 2, 10, 101) == (0, 1, 2)


def test_the_order_of_the_workers_does_not_matter():
    draws = np.random.default_rng(1)
    times = np.array([0.5, 0.4, 0.37, 0.3, 0.39])
    table = [(times * draws.uniform(0.7, 1.3, 5)).tolist() for _ in range(4)]
    found = {decide(foreseen(*joined(each)), 2, 10, None) for each in itertools.permutations(table)}
    assert len(found) == 1


def test_one_worker_with_slow_codecs_prunes_a_method_for_all():
    table = [[1.0, 0.6, 0.3], [1.0, 0.6, 0.3], [1.0, 0.6, 0.9]]
    assert decide(foreseen(*joined(table)), 2, 10, None) == (0, 1)


@pytest.mark.parametrize("seed", range(20))
def test_measurements_that_are_30_percent_off_keep_a_method_that_is_far_better(seed):
    draws = np.random.default_rng(seed)
    seconds = np.array([8.4, 4.3, 2.2, 1.2]) * draws.uniform(0.7, 1.3, 4)
    assert 3 in decide(foreseen(*seconds), 2, 10, None)


def trained(times, predicted, steps=1000, seed=None):
    """A training whose probe said `predicted`: (seconds in all, by the best baseline, arm)."""
    trial = Trial(len(times), baselines=2)
    trial.pruned = set(range(len(times))) - set(decide(foreseen(*predicted), 2, 10, None))
    clock = constant(times) if seed is None else jittered(times, seed, 0.1)
    training = Simulated(clock, trial=trial).take(steps)
    return training.total, min(times[:2]) * training.step, training


@pytest.mark.parametrize("times", [SLOW, MIDDLE, FAST, (0.2, 0.2, 0.2, 0.2)])
@pytest.mark.parametrize("lie", ["all methods are free", "no method gains", "the reverse"])
@pytest.mark.parametrize("seed", range(3))
def test_a_probe_that_lies_costs_two_percent_at_most(times, lie, seed):
    predicted = {
        "all methods are free": (*times[:2], 0.01 * times[2], 0.01 * times[3]),
        "no method gains": (*times[:2], 9 * times[0], 9 * times[0]),
        "the reverse": times[::-1],
    }[lie]
    total, best, training = trained(times, predicted, seed=seed)
    assert total <= 1.02 * best
    if lie == "no method gains":
        assert set(training.arms) == {NONE, HALF}


def test_the_methods_that_are_not_traced_are_never_taken():
    _, _, training = trained(SLOW, (*SLOW[:2], 9.0, SLOW[3]))
    assert set(training.arms) == {NONE, HALF, FOUR}
    assert training.chosen == FOUR


def test_the_prediction_is_of_exchange_and_codec_alone():
    """Half of 8 MB a worker and direction at 1 µs/byte, and a codec of 2 s; one hop is 0.5 s."""
    network = Network(
        2, {"sum": Cost(0.0, 1e-6), "half_sum": Cost(0.0, 2e-6), "gather": Cost(0.5, 1e-6)}
    )
    (plain, half, coded) = (
        Foreseen.of([Bucket(0.0, codec / 2, codec / 2, (Collective(kind, nbytes),))], network)
        for kind, nbytes, codec in (
            ("sum", 8 << 20, 0.0),
            ("half_sum", 4 << 20, 0.0),
            ("gather", 1 << 20, 2.0),
        )
    )
    assert plain.micros == 8 << 20 == half.micros  # 16-bit sums take twice as long a byte
    assert (coded.exchange, coded.codec) == ((1 << 20) + 500_000, 2_000_000)
    assert coded.micros == coded.exchange + coded.codec


def test_the_sentence_has_the_best_method_and_the_best_baseline():
    names = ("none", "bf16", "qsgd:bits=8", "eden")
    seen = {0: Foreseen(40_000, 40_000, 0), 1: Foreseen(24_000, 20_000, 4_000)}
    seen |= {2: Foreseen(33_000, 15_000, 18_000), 3: Foreseen(28_000, 9_000, 19_000)}
    assert said(seen, (0, 1), 2, names) == (
        "auto tries no method beside none and bf16, since exchange and codec of eden take 28 ms "
        "(9 ms and 19 ms), of bf16 take 24 ms (20 ms and 4 ms)."
    )
    assert said(seen, (0, 1, 3), 2, names).startswith("auto tries eden, since exchange and codec")
