"""How people write links: all spellings that are meant, and one sentence for all others."""

import pytest

from grace_tf.advice.link import Link, parse_link, rate_text


@pytest.mark.parametrize(
    "text, link",
    [
        ("1gbit", Link(1e9)),
        ("100mbit,20ms", Link(1e8, 0.02)),
        ("100mbit, latency=20ms", Link(1e8, 0.02)),
        ("1.5 Gbit/s,latency = .5s", Link(1.5e9, 0.5)),
        ("800KBIT,250us", Link(8e5, 2.5e-4)),
        ("56000bit", Link(56e3)),
        ("2tbit,0ms", Link(2e12)),
    ],
)
def test_both_spellings_and_all_units_are_read(text, link):
    read = parse_link(text)
    assert (read.bits_per_second, read.latency) == pytest.approx(
        (link.bits_per_second, link.latency)
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "1",
        "1gb",
        "1gbps",
        "1gbyte",
        "-1gbit",
        "1gbit,20",
        "1gbit,5ms,5ms",
        "5ms",
        "1e9bit",
    ],
)
def test_another_text_is_one_sentence_that_names_the_form(text):
    with pytest.raises(ValueError, match=r"A link is written as .*1gbit.*, not '.*'\.$"):
        parse_link(text)


def test_a_rate_of_zero_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        parse_link("0mbit")


def test_a_link_reads_as_people_write_it():
    assert str(parse_link("1gbit")) == "1 Gbit/s"
    assert str(parse_link("100mbit,20ms")) == "100 Mbit/s, 20 ms"
    assert [rate_text(r) for r in (2.5e10, 5e4, 300)] == ["25 Gbit/s", "50 kbit/s", "300 bit/s"]


def test_a_byte_takes_eight_bits():
    assert Link(1e9).seconds_per_byte == 8e-9
