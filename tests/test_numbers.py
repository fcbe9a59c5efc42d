"""Numbers as people write them."""

from __future__ import annotations

import time

import pytest

from cswf_core.cli.options import bytes_of
from cswf_core.errors import did_you_mean, excerpt
from cswf_core.interfaces.contract import Interval
from cswf_core.numbers import LARGEST, bytes_in_words, number_hint, whole_number
from cswf_core.session.sweep import _trials
from cswf_plugins.schedules.pyramid import Entry

LENGTH = 100_000
SECONDS = 2.0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("0", 0), (" 12 ", 12), ("0" * 5000 + "7", 7), (str(LARGEST), LARGEST)],
        *((text, None) for text in (str(LARGEST + 1), "9" * 5000, "-1", "1.0", "²", "")),
    ],
)
def test_a_whole_number_is_one_that_64_bits_hold(text, number):
    assert whole_number(text) == number


@pytest.mark.parametrize(
    ("text", "hint", "whole"),
    [
        ("10k", " (write 10000)", True),
        ("1.5M", " (write 1500000)", True),
        ("10,000", " (write 10000)", True),
        ("57%", " (write 0.57)", False),
        ("57%", "", True),
        ("ten", "", False),
        ("9" * 5000 + "k", "", False),
    ],
)
def test_a_short_number_gets_its_digits(text, hint, whole):
    assert number_hint(text, whole=whole) == hint


def test_bytes_are_written_with_three_digits_and_a_unit():
    written = [bytes_in_words(count) for count in (0, 999, 28e12, 25.2e9, 10**40)]
    assert written == ["0 bytes", "999 bytes", "28 TB", "25.2 GB", "more than 1,000 EB"]


def test_an_excerpt_leaves_out_the_end_of_a_long_text():
    assert excerpt("short") == "short"
    assert len(excerpt("9" * LENGTH)) == 60


@pytest.mark.parametrize(
    "text",
    [
        "1" + " " * LENGTH + "!",
        " " * LENGTH + "!",
        "1" * LENGTH,
        "1." + "1" * LENGTH + "x",
        "1" * LENGTH + "h",
        "(8x8) [3]" + " " * LENGTH + "!",
        "(8x8) [3]" + " a=b" * (LENGTH // 4) + "!",
        "(8x8) [3] a=" + "b" * LENGTH + "!",
        "(8x8) [" + "3," * (LENGTH // 2),
        "(" + "8" * LENGTH + "x8) [3]",
        "(8x8) [3] steps=" + "8" * LENGTH,
    ],
)
@pytest.mark.parametrize("form", [Interval, Entry])
def test_a_written_form_is_refused_quickly_and_briefly_whatever_its_length(form, text):
    began = time.perf_counter()
    with pytest.raises(ValueError, match=r"is not|must|too large|needs|takes") as error:
        form.from_text(text)
    assert time.perf_counter() - began < SECONDS
    assert len(str(error.value)) < 400


def test_names_of_any_length_are_compared_and_shortened_quickly():
    began = time.perf_counter()
    long = "ab" * LENGTH
    assert "did you mean" not in did_you_mean(long, [long + "c", "digits"])
    assert bytes_of("1" * LENGTH + "gb") is None
    assert bytes_of("1" + " " * LENGTH + "!") is None
    assert [trial.folder for trial in _trials([(" " * LENGTH + "x", None)])] == ["x"]
    assert time.perf_counter() - began < SECONDS
