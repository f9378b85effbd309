"""The sentence: what it recommends, what it names beside it, and when it says no."""

import pytest

from grace_tf.advice.timeline import StepTime
from grace_tf.advice.verdict import Choice, best_sixteen, seconds_text, verdict

WHERE = "8 workers at 1 Gbit/s"


def choices(**seconds):
    levels = {"acpsgd": "balanced", "topk": "aggressive", "signsgd": None}
    return [
        Choice(name, 0.0, StepTime(each, 0.0, 0.0, 0.0), levels.get(name, "safe"))
        for name, each in seconds.items()
    ]


def test_the_fastest_admitted_method_is_recommended_and_a_faster_one_is_named():
    given = choices(none=0.93, bf16=0.55, fp16=0.57, eden=0.41, acpsgd=0.33, signsgd=0.2)
    answer = verdict(given, "safe", WHERE)
    assert answer.spec == "eden"
    assert answer.sentence == (
        "8 workers at 1 Gbit/s: 0.41 s a step instead of 0.93 s (bf16 0.55 s): use eden; acpsgd "
        "takes 0.33 s if you can check accuracy."
    )


def test_a_quality_admits_more():
    given = choices(none=0.93, bf16=0.55, eden=0.41, acpsgd=0.33, topk=0.3)
    assert verdict(given, "balanced", WHERE).spec == "acpsgd"
    assert "; topk takes" in verdict(given, "balanced", WHERE).sentence
    assert verdict(given, "aggressive", WHERE).spec == "topk"


def test_where_nothing_is_gained_the_sentence_says_no():
    given = choices(none=0.2, bf16=0.197, eden=0.25, acpsgd=0.22)
    assert verdict(given, "safe", WHERE).sentence == (
        "Do not compress: a step of 8 workers at 1 Gbit/s takes 0.2 s, with the best other "
        "method, bf16, 0.2 s as well."
    )


def test_a_method_that_needs_more_trust_is_named_also_where_the_answer_is_no():
    sentence = verdict(choices(none=0.2, bf16=0.2, acpsgd=0.1), "safe", WHERE).sentence
    assert sentence.startswith("Do not compress: ")
    assert sentence.endswith("as well; acpsgd takes 0.1 s if you can check accuracy.")


def test_sixteen_bits_are_enough_where_compression_brings_less_than_it_is_worth():
    given = choices(none=1.0, fp16=0.499, bf16=0.5, eden=0.49)
    answer = verdict(given, "safe", WHERE)
    assert answer.spec == "bf16"  # fp16 is as fast, and ends earlier
    assert answer.sentence == "8 workers at 1 Gbit/s: 0.5 s a step instead of 1 s: use bf16."


def test_what_has_no_level_is_never_named():
    answer = verdict(choices(none=1.0, signsgd=0.1), "aggressive", WHERE)
    assert answer.spec == "none"
    assert "check accuracy" not in answer.sentence


def test_the_best_sixteen_bit_exchange_is_the_faster_one():
    assert best_sixteen(choices(none=1.0, bf16=0.6, fp16=0.5)).spec == "fp16"
    assert best_sixteen(choices(none=1.0)) is None


def test_without_none_there_is_nothing_to_compare_with():
    with pytest.raises(ValueError, match="add none"):
        verdict(choices(bf16=1.0), "safe", WHERE)


def test_times_read_as_people_say_them():
    assert [seconds_text(s) for s in (0.0384, 0.41, 0.0995, 9.94, 12.3, 5e-4)] == [
        *("38 ms", "0.41 s", "0.1 s", "9.9 s", "12 s", "0.5 ms"),
    ]
    rounding_error = 0.1 + 0.2 - 0.3
    assert seconds_text(rounding_error) == seconds_text(0.0) == "0 ms"
    assert seconds_text(1e-9) == "1e-06 ms"
