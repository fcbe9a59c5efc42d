"""Several runs on one page: scores, curves, samples, frames and recipes side by side."""

from __future__ import annotations

import json
import re

import pytest

from cswf_core.report import compare
from tests.report.conftest import meaning, score
from tests.report.test_report import NASTY, Outline


def rows(page: str, section: str) -> list[list[str]]:
    """The cells of a section's first table, as plain text."""
    table = re.search(rf'<section id="{section}">.*?</table>', page, re.DOTALL)[0]
    cells = (
        re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL) for row in re.findall(r"(?s)<tr>(.*?)</tr>", table)
    )
    return [[" ".join(re.sub("<[^>]+>", "", cell).split()) for cell in row] for row in cells]


def sure(name: str, value: float, better: str = "lower", error: float = 0.1, **facts) -> dict:
    """A score with a standard error."""
    return score(name, value, better, error=error, **facts)


def seeds(make, name: str, values: list[float], **recipe) -> list:
    """Runs that differ in their seed only, each with its FID."""
    return [
        make(f"{name}-{seed}", seed=seed, scores=[score("fid", value)], recipe={"name": name, **recipe})
        for seed, value in enumerate(values)
    ]


def test_the_best_score_is_marked_where_it_is_better_beyond_noise_and_a_dash_where_it_lacks(make):
    first = [sure("fid", 9.0), sure("recall", 0.3, "higher", 0.01), sure("size", 3.0, "")]
    second = [sure("fid", 7.0), sure("recall", 0.2, "higher", 0.01), sure("kid", 4.0, "")]
    runs = [make("a", scores=first), make("b", scores=second, recipe={"cdf": "sorted"})]
    assert rows(compare(runs), "metrics") == [
        ["score", "a", "b"],
        ["FID ↓", "9.00 ± 0.10", "best 7.00 ± 0.10"],
        ["recall ↑", "best 0.300 ± 0.010", "0.200 ± 0.010"],
        ["size", "3.00 ± 0.10", "–"],
        ["KID", "–", "4.00 ± 0.10"],
    ]


def pair(make, first: dict, second: dict, data: tuple[str, str] = ("digits", "digits")) -> str:
    """The page of two runs with a score each, of recipes that differ."""
    parts = (("a", first, "spline", data[0]), ("b", second, "sorted", data[1]))
    return compare(
        [make(name, scores=[one], recipe={"cdf": cdf, "data": {"use": use}}) for name, one, cdf, use in parts]
    )


OF_REAL = {"meaning": meaning("condition", of_samples=False)}


@pytest.mark.parametrize(
    ("first", "second", "data", "said"),
    [
        (score("fid", 9.0), score("fid", 7.0), None, "Not ranked, as no uncertainty is known: FID."),
        (
            sure("fid", 0.01561, error=0.0002),
            sure("fid", 0.01572, error=0.0002),
            None,
            "Differences within the noise are not ranked: FID.",
        ),
        (score("fid", 9.0), score("fid", 7.0), ("mnist", "cifar10"), "as they were not computed alike: FID."),
        (sure("fid", 9.0), sure("fid", 7.0), ("mnist", "cifar10"), "as they were not computed alike: FID."),
        (
            sure("class_accuracy_real", 0.9, "higher", 0.001, **OF_REAL),
            sure("class_accuracy_real", 0.8, "higher", 0.001, **OF_REAL),
            None,
            "",  # it is no property of the samples
        ),
    ],
)
def test_where_none_is_the_best_a_sentence_says_why(make, first, second, data, said):
    page = pair(make, first, second, data or ("digits", "digits"))
    assert "best" not in "".join(rows(page, "metrics")[1])
    assert said in page
    assert ("anked" in Outline(page).text) == bool(said)


def test_a_run_that_copies_is_never_the_best(make):
    warned = score("copies_l2", 0.2, "", notes=["copying: 20 of 100 samples are nearer …"])
    copied = make("copied", scores=[sure("fid", 1.0), warned])
    a = make("a", scores=[sure("fid", 7.0)], recipe={"cdf": "sorted"})
    b = make("b", scores=[sure("fid", 9.0)], recipe={"cdf": "spline"})
    page = compare([copied, a, b])
    assert rows(page, "metrics")[1] == ["FID ↓", "1.00 ± 0.10", "best 7.00 ± 0.10", "9.00 ± 0.10"]
    assert "Runs with copies of training images among their samples are not ranked: FID." in page
    assert "best" not in "".join(rows(compare([copied, a]), "metrics")[1])


def test_seeds_of_one_recipe_are_one_column_with_their_mean_and_deviation(make):
    first = seeds(make, "first", [9.0, 9.2, 9.4])
    page = compare([*first, *seeds(make, "second", [7.0, 7.1], cdf="sorted")])
    assert rows(page, "metrics") == [
        ["score", "first 3 seeds: 0, 1 and 2", "second 2 seeds: 0 and 1"],
        ["FID ↓", "9.20 ± 0.20", "best 7.050 ± 0.071"],
    ]
    assert "mean ± standard deviation over seeds" in page
    assert rows(compare(first), "metrics")[1] == ["FID ↓", "9.20 ± 0.20"]
    (first[2] / "metrics.json").unlink()
    assert "(2 of 3 seeds)" in rows(compare(first), "metrics")[1][1]


def test_scores_that_do_not_fit_together_are_told_beside_their_run(make):
    mixed = [sure("fid", 9.0, settings={"seed": 0}), sure("kid", 7.0, settings={"seed": 1})]
    said = "these scores were computed with different seeds of evaluation (0: fid; 1: kid)"
    assert said in Outline(compare([make("a", scores=mixed), make("b")])).text


def test_only_the_keys_that_differ_are_listed(make):
    a = make("a", recipe={"cdf": {"use": "histogram", "bins": 64}, "condition": "none"})
    b = make("b", recipe={"cdf": {"use": "sorted"}, "condition": "none"}, seed=1)
    differing = [["seed", "0", "1"], ["cdf.use", "histogram", "sorted"], ["cdf.bins", "64", "–"]]
    assert rows(compare([a, b]), "recipe") == [["key", "a", "b"], *differing]
    assert "The recipes are the same in every key." in compare([a, a])


def test_runs_are_told_apart_by_name_else_by_folder_else_by_path(make):
    def labels(page: str) -> list[str]:
        return [run["label"] for run in json.loads(Outline(page).scripts[0])["runs"]]

    a, b = make("a", recipe={"name": "one"}), make("b", recipe={"name": "two"})
    assert labels(compare([a, b])) == ["one", "two"]
    c, d = make("c"), make("x/c")
    assert labels(compare([a, make("e", recipe={"name": "one"})])) == ["a", "e"]
    assert labels(compare([c, d])) == [str(c), str(d)]
    assert labels(compare([a, a])) == [f"{a} (1)", f"{a} (2)"]


def test_a_comparison_has_all_parts_of_all_runs_and_the_versions_that_differ(make):
    a, b = make("a"), make("b", seed=1, facts={"versions": {"python": "3.11", "torch": "2.99"}})
    html = compare([a, b])
    page = Outline(html)
    assert page.sections == ["runs", "metrics", "samples", "neighbours", "flow", "curves", "recipe", "versions"]
    pictures = page.all("img")
    assert sum(picture["src"].startswith("data:image/gif") for picture in pictures) == 2
    near = [picture["alt"] for picture in pictures if "nearest" in picture["alt"]]
    assert near == ["nearest-neighbours of a", "nearest-neighbours of b"]
    assert rows(html, "versions") == [["key", "a", "b"], ["torch", "2.10", "2.99"]]
    assert "The same in all runs" in page.text
    assert "All versions and digests are the same." in compare([a, a])


def test_a_damaged_or_failed_run_among_others_is_told_and_the_rest_shown(make):
    a, b = make("a"), make("b", facts={"status": "failed", "error": "out of luck"})
    (b / "frames.npz").write_bytes(b"nonsense")
    (b / "metrics.jsonl").unlink()
    page = Outline(compare([a, b]))
    assert "b: out of luck" in page.text
    assert "b: frames.npz cannot be read" in page.text


def test_nothing_breaks_out_of_a_comparison(make):
    page = Outline(compare([make(f"r{i}", recipe={"name": f"{NASTY}{i}", NASTY: i}) for i in range(9)]))
    assert len(page.all("script")) == 2
    assert all(picture["src"].startswith("data:") for picture in page.all("img"))
