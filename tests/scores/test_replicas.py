"""Seeds taken together, differences that are more than noise, and what another evaluation adds or replaces."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import stats

from cswf_core.errors import RunError
from cswf_core.runs.scores import Score, joined
from cswf_core.scores.replicas import Estimate, Summary, best, groups


def test_runs_that_differ_in_seed_only_are_one_group_and_the_same_seed_twice_is_no_replica():
    recipes = [{"seed": seed, "name": f"n{seed}", "data": {"use": data}} for data in "ab" for seed in (0, 1, 2)]
    assert groups(recipes) == [[0, 1, 2], [3, 4, 5]]
    assert groups([recipes[0], recipes[3], recipes[1]]) == [[0, 2], [1]]
    assert groups([recipes[0], recipes[0], {}, {}]) == [[0], [1], [2], [3]]


def test_seeds_become_a_mean_and_a_standard_deviation_with_n_minus_one():
    of_three = Summary(tuple(Score("fid", value, error=9.0) for value in (1.0, 2.0, 6.0)))
    assert of_three.mean == 3.0
    assert of_three.spread == pytest.approx(math.sqrt(7))
    assert of_three.spread_method == "standard deviation over 3 seeds"
    assert of_three.estimate == Estimate(3.0, math.sqrt(7 / 3), 2)
    agreeing = [Summary((Score("fid", value),) * 2).estimate for value in (0.9, 0.901)]
    assert best(agreeing, "higher") is None  # that two agree by chance makes no number certain


def test_a_single_run_has_the_standard_error_of_its_score_and_its_degrees_of_freedom():
    alone = Summary((Score("fid", 3.0, error=0.5, error_method="by guess", error_freedom=9),))
    assert (alone.deviation, alone.spread, alone.estimate) == (None, 0.5, Estimate(3.0, 0.5, 9))
    assert alone.spread_method == "standard error of one run's score: by guess"


def test_intervals_are_students():
    assert Estimate(0.0, 2.0).interval == pytest.approx(2 * 1.959964)
    assert Estimate(0.0, 1.0, 2).interval == pytest.approx(stats.t.ppf(0.975, 2))


def test_welch_s_degrees_of_freedom_are_those_of_scipy():
    a, b = [1.0, 1.2, 1.1], [1.5, 1.9, 1.6, 1.7]

    def estimate(values: list[float]) -> Estimate:
        return Estimate(sum(values) / len(values), stats.sem(values), len(values) - 1)

    difference = estimate(a).minus(estimate(b))
    expected = stats.ttest_ind(a, b, equal_var=False)
    assert difference.freedom == pytest.approx(expected.df)
    assert difference.value / difference.error == pytest.approx(expected.statistic)


def test_nothing_is_best_within_noise_or_where_nobody_knows_the_noise():
    one, other, unknown = Estimate(1.0, 0.5), Estimate(1.2, 0.5), Estimate(0.1)
    assert best([one, other], "lower") is None
    assert best([one, unknown], "lower") is None
    assert best([one, Estimate(9.0, 0.5)], "lower") == 0
    assert best([one, None, Estimate(9.0, 0.5)], "higher") == 2
    assert best([one, Estimate(9.0, 0.5)], "") is None
    assert Estimate(5.0).is_noise


def entry(name: str = "fid", value: float = 1.0, *, samples: int = 50, **more: Any) -> dict[str, Any]:
    shared = {"row": name, "notes": [], "source": "samples.npz", "all_samples_sha256": "a" * 64}
    settings = {"seed": 0, "precision": "float32", "samples": 50_000}
    return {"name": name, "value": value, "samples": samples, **shared, "settings": settings, **more}


def document(*scores: dict[str, Any], digest: str = "a" * 64, **more: Any) -> dict[str, Any]:
    generated = {"source": "samples.npz", "all_sha256": digest}
    made = {"format": 2, "generated": generated, "scores": list(scores), "notes": [], "figures": []}
    return {**made, **more}


OTHER = {"settings": {"seed": 1, "precision": "fast", "samples": 50_000}}


@pytest.mark.parametrize(
    ("earlier", "later", "values", "said"),
    [
        (entry(), entry(value=2.0, samples=5), [1.0], "metrics.json keeps its scores of more samples: fid"),
        (
            entry(value=2.0, samples=5),
            entry(),
            [1.0],
            "fid takes the place of an earlier one: of 50 samples, was 5",
        ),
        (
            entry(),
            entry(value=3.0, **OTHER),
            [3.0],
            "fid takes the place of an earlier one: seed 1, was 0; precision fast, was float32",
        ),
    ],
)
def test_of_two_scores_of_one_name_one_stays_and_it_is_told(earlier, later, values, said):
    both, told = joined(document(earlier), document(later))
    assert [score["value"] for score in both["scores"]] == values
    assert told == [said]


def test_scores_of_one_document_by_different_settings_are_told():
    fast = {"settings": {"seed": 0, "precision": "fast", "samples": 50_000}}
    _, told = joined(document(entry("fid")), document(entry("kid", **fast)))
    assert told == ["these scores were computed with different precision (float32: fid; fast: kid)"]


def test_scores_of_samples_that_are_gone_are_left_out_with_their_figures():
    earlier = document(entry("fid"), entry("kid_offline", source="samples-offline.npz"))
    earlier["figures"] = ["nearest-neighbours.png", "nearest-neighbours-offline.png"]
    both, told = joined(earlier, document(entry("kid"), digest="b" * 64))
    assert [score["name"] for score in both["scores"]] == ["kid_offline", "kid"]
    assert both["figures"] == ["nearest-neighbours-offline.png"]
    assert told[0] == "samples.npz has other samples now, so that their earlier scores are left out: fid"


def test_scores_against_other_real_samples_of_one_name_keep_apart():
    one, other = ({"data": "real", "split": "", "sha256": digit * 64} for digit in "12")
    first = document(entry("fid_real", 1.0, against=one))
    both, told = joined(first, document(entry("fid_real", 2.0, against=other)))
    assert {score["name"]: score["value"] for score in both["scores"]} == {"fid_real": 1.0, "fid_real_2": 2.0}
    there = "scores of these names are there already, against other real samples: fid_real (now fid_real_2)"
    assert told == [there]
    again, told = joined(both, document(entry("fid_real", 3.0, against=other)))
    assert {score["name"]: score["value"] for score in again["scores"]} == {"fid_real": 1.0, "fid_real_2": 3.0}


@pytest.mark.parametrize("damaged", [None, [], document(scores=3), document({}), document({"name": "fid"})])
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
