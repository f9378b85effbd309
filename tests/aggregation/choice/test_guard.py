"""The choice `auto` leaves a method whose error is too large or whose residual keeps growing."""

import math

from grace_tf.aggregation.choice.guard import Guard

NAN = math.nan


def judged(guard, errors=(), residuals=(), largest=None):
    pairs = [(e, NAN) for e in errors] + [(NAN, r) for r in residuals]
    return [guard.judge(0, *pair, largest) for pair in pairs]


def guard_of(most=0.01):
    return Guard([most, None], "safe")


def test_errors_within_the_bound_or_a_little_above_it_stay():
    assert judged(guard_of(), [0.0096, 0.0104, 0.0101, 0.0096, 0.0109] * 5) == [None] * 25


def test_three_errors_above_the_bound_in_a_row_are_enough_and_two_are_not():
    said = judged(guard_of(), [0.013, 0.013, 0.009, 0.013, NAN, 0.014, 0.02])
    assert said[:-1] == [None] * 6
    assert said[-1] == (
        "the vNMSE of its mean is 0.02, above the 0.01 that quality=safe allows, 3 times one after "
        "the other"
    )


def test_one_error_of_four_times_the_bound_is_enough():
    (said,) = judged(guard_of(), [0.041])
    assert said == "the vNMSE of its mean is 0.041, above the 0.01 that quality=safe allows"
    assert judged(guard_of(None), [5.0] * 4) == [None] * 4  # a residual returns what is lost


def test_a_residual_is_left_where_it_is_large_and_grew_three_times():
    assert judged(guard_of(None), residuals=[1, 2, 3, 4, 5]) == [None] * 5
    assert judged(guard_of(None), residuals=[20, 21, 22, 21, 22, 23]) == [None] * 6
    said = judged(guard_of(None), residuals=[20, 21, 22, 23])
    assert said[:3] == [None] * 3
    assert said[3] == "its residual is 23 times the gradient and still grows"
    assert judged(guard_of(None), residuals=[20, 21, 22, 23], largest=199.0) == [None] * 4


def test_a_saved_record_goes_on():
    for values in ({"errors": [0.012, 0.013]}, {"residuals": [20.0, 21.0, 22.5]}):
        first = guard_of()
        judged(first, **values)
        again = guard_of()
        again.resume(0, first.saved(0))
        assert again.saved(0) == first.saved(0)
        last = {name: [each[-1] * 2] for name, each in values.items()}
        assert judged(again, **last)[0]
    again.resume(0, first.saved(None))
    assert again.saved(0) == first.saved(None) == (0, 0, 0)
