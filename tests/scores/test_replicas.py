"""Seeds taken together, and differences that are more than noise."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from cswf_core.runs.scores import Score, ScoreDocument
from cswf_core.scores.replicas import Estimate, best, groups, half_width, summaries


def test_runs_that_differ_in_seed_only_are_one_group():
    recipes = [{"seed": seed, "name": f"n{seed}", "data": {"use": data}} for data in "ab" for seed in (0, 1, 2)]
    assert groups(recipes) == [[0, 1, 2], [3, 4, 5]]
    assert groups([recipes[0], recipes[3], recipes[1]]) == [[0, 2], [1]]


def test_the_same_seed_twice_and_unknown_recipes_are_no_replicas():
    recipe = {"seed": 0, "data": "a"}
    assert groups([recipe, recipe, {}, {}]) == [[0], [1], [2], [3]]


def test_seeds_become_a_mean_and_a_standard_deviation_with_n_minus_one():
    documents = [ScoreDocument((Score("fid", value, error=9.0),)) for value in (1.0, 2.0, 6.0)]
    summary = summaries(documents)["fid"]
    assert summary.mean == 3.0
    assert summary.spread == pytest.approx(math.sqrt(7))
    assert summary.spread_method == "standard deviation over 3 seeds"
    assert summary.estimate == Estimate(3.0, math.sqrt(7 / 3), 2)


def test_a_single_run_has_the_standard_error_of_its_score():
    summary = summaries([ScoreDocument((Score("fid", 3.0, error=0.5, error_method="by guess"),))])["fid"]
    assert (summary.deviation, summary.spread) == (None, 0.5)
    assert summary.spread_method == "standard error of one run's score: by guess"


def test_seeds_that_agree_by_chance_make_no_number_certain():
    two = [
        summaries([ScoreDocument((Score("accuracy", value),)) for _ in range(2)])["accuracy"]
        for value in (0.9, 0.901)
    ]
    assert best([summary.estimate for summary in two], "higher") is None


def test_an_error_from_few_parts_makes_a_wider_interval():
    few = summaries([ScoreDocument((Score("recall", 0.5, error=0.01, error_freedom=9),))])["recall"]
    assert few.estimate == Estimate(0.5, 0.01, 9)


def test_intervals_are_students():
    assert half_width(2.0) == pytest.approx(2 * 1.959964)
    assert half_width(1.0, 2) == pytest.approx(stats.t.ppf(0.975, 2))


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
