"""The document of scores: what an evaluation adds, what it replaces, and what is told."""

from __future__ import annotations

from typing import Any

import pytest

from cswf_core.errors import RunError
from cswf_core.runs.scores import joined


def entry(name: str = "fid", value: float = 1.0, *, samples: int = 50, **more: Any) -> dict[str, Any]:
    shared = {"row": name, "notes": [], "source": "samples.npz", "all_samples_sha256": "a" * 64}
    settings = {"seed": 0, "precision": "float32", "samples": 50_000}
    return {"name": name, "value": value, "samples": samples, **shared, "settings": settings, **more}


def document(*scores: dict[str, Any], digest: str = "a" * 64, **more: Any) -> dict[str, Any]:
    generated = {"source": "samples.npz", "all_sha256": digest}
    made = {"format": 2, "generated": generated, "scores": list(scores), "notes": [], "figures": []}
    return {**made, **more}


def test_of_two_scores_of_one_name_that_of_more_samples_stays_and_it_is_told():
    many, few = document(entry(value=1.0)), document(entry(value=2.0, samples=5))
    both, told = joined(many, few)
    assert [score["value"] for score in both["scores"]] == [1.0]
    assert told == ["metrics.json keeps its scores of more samples: fid"]
    both, told = joined(few, many)
    assert [score["value"] for score in both["scores"]] == [1.0]
    assert told == ["fid takes the place of an earlier one: of 50 samples, was 5"]


def test_scores_of_samples_that_are_gone_are_left_out_with_their_figures():
    earlier = document(entry("fid"), entry("kid_offline", source="samples-offline.npz"))
    earlier["figures"] = ["nearest-neighbours.png", "nearest-neighbours-offline.png"]
    both, told = joined(earlier, document(entry("kid"), digest="b" * 64))
    assert [score["name"] for score in both["scores"]] == ["kid_offline", "kid"]
    assert both["figures"] == ["nearest-neighbours-offline.png"]
    assert told[0] == "samples.npz has other samples now, so that their earlier scores are left out: fid"


def test_a_score_by_other_settings_tells_what_it_replaces():
    settings = {"seed": 1, "precision": "fast", "samples": 50_000}
    _, told = joined(document(entry()), document(entry(settings=settings)))
    assert told == ["fid takes the place of an earlier one: seed 1, was 0; precision fast, was float32"]


def test_scores_of_one_document_by_different_settings_are_told():
    settings = {"seed": 0, "precision": "fast", "samples": 50_000}
    _, told = joined(document(entry("fid")), document(entry("kid", settings=settings)))
    assert told == ["these scores were computed with different precision (float32: fid; fast: kid)"]


def test_scores_against_other_real_samples_of_one_name_keep_apart():
    one, other = ({"data": "real", "split": "", "sha256": digit * 64} for digit in "12")
    first, second = (
        document(entry("fid_real", 1.0, against=one)),
        document(entry("fid_real", 2.0, against=other)),
    )
    both, told = joined(first, second)
    assert {score["name"]: score["value"] for score in both["scores"]} == {"fid_real": 1.0, "fid_real_2": 2.0}
    there = "scores of these names are there already, against other real samples: fid_real (now fid_real_2)"
    assert told == [there]
    again, told = joined(both, document(entry("fid_real", 3.0, against=other)))
    assert {score["name"]: score["value"] for score in again["scores"]} == {"fid_real": 1.0, "fid_real_2": 3.0}


@pytest.mark.parametrize(
    "damaged",
    [None, [], document(scores=3), document({}), document({"name": "fid"})],
)
def test_a_document_that_is_damaged_is_replaced(damaged):
    few = document(entry())
    told = [] if damaged is None else ["the earlier metrics.json cannot be read, and is replaced"]
    assert joined(damaged, few) == (few, told)


@pytest.mark.parametrize("other", [1, 3])
def test_a_document_of_another_format_is_not_written_over(other):
    advice = "reads format 2; remove it, and score again with `cswf eval RUN`, or give another --out"
    with pytest.raises(RunError, match=advice):
        joined({**document(entry()), "format": other}, document(entry()))


def test_numbers_that_are_none_do_not_stop_a_later_evaluation():
    both, _ = joined(document({**entry(), "samples": "5", "notes": "abc"}), document(entry(value=2.0)))
    assert [score["value"] for score in both["scores"]] == [2.0]
    assert both["notes"] == []
