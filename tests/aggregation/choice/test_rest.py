"""What is left of a training, from the call of `fit` that takes a step."""

import math
from unittest import mock

import pytest

from grace_tf.aggregation.choice.rest import Call, Rest, fewest_planned, rest_of


def of_workers(*others):
    """An agreement with other workers that tell these numbers."""
    return mock.Mock(largest=lambda mine: [max(each) for each in zip(mine, *others)])


@pytest.mark.parametrize(
    "call, taken, rest",
    [
        (Call(1000, 12, True), 12, Rest(988, 988, True)),
        (Call(1000, 990, True), 990, Rest(10, 10, True)),  # not the 990 that it has taken
        (Call(50, 13, True), 213, Rest(200, math.inf, True)),  # the fifth call of as many steps
        (Call(1000, 10, True), 60, Rest(990, math.inf, True)),
        (Call(done=300, again=True), 300, Rest(300, math.inf, True)),  # data of unknown length
        (Call(), 40, Rest(40, math.inf, False)),  # outside of fit
        (Call(1000, 400, True), 100, Rest(600, 600, True)),  # four batches for each exchange
    ],
)
def test_the_rest_is_that_of_the_call_or_as_much_as_was_taken_before_it(call, taken, rest):
    assert rest_of(call, taken, of_workers()) == rest


def test_the_worker_with_the_fewest_steps_counts():
    assert rest_of(Call(1000, 0, True), 0, of_workers([-600, -700, 0])) == Rest(600, 700, True)
    assert not rest_of(Call(1000, 0, True), 0, of_workers([-1000, -1000, 1])).again
    assert fewest_planned(Call(1000), of_workers([-300], [-math.inf])) == 300
