"""Several runs on one page: scores, curves, samples, frames and recipes side by side."""

from __future__ import annotations

import json
import re

from cswf_core.report import compare
from tests.report.conftest import score
from tests.report.test_report import NASTY, Outline


def rows(page: str, section: str) -> list[list[str]]:
    """The cells of a section's first table, as plain text."""
    found = re.search(rf'<section id="{section}">.*?</table>', page, re.DOTALL)[0]
    cells = (
        re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL) for row in re.findall(r"(?s)<tr>(.*?)</tr>", found)
    )
    return [[" ".join(re.sub("<[^>]+>", "", cell).split()) for cell in row] for row in cells]


def test_the_best_score_is_marked_where_the_score_says_what_is_better_and_a_dash_where_it_lacks(make):
    a = make("a", scores=[score("fid", 9.0), score("recall", 0.3, "higher"), score("size", 3.0, "")])
    b = make("b", scores=[score("fid", 7.0), score("recall", 0.2, "higher"), score("kid", 4.0, "")])
    assert rows(compare([a, b]), "metrics") == [
        ["score", "a", "b"],
        ["FID ↓", "9.000", "best 7.000"],
        ["recall ↑", "best 0.3000", "0.2000"],
        ["size", "3.000", "–"],
        ["KID", "–", "4.000"],
    ]


def test_scores_on_different_data_are_not_ranked(make):
    a = make("a", scores=[score("fid", 9.0)], recipe={"data": {"use": "mnist"}})
    b = make("b", scores=[score("fid", 7.0)], recipe={"data": {"use": "cifar10"}})
    assert "best" not in "".join(rows(compare([a, b]), "metrics")[1])


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


def test_a_comparison_has_the_frames_and_samples_of_all_runs(make):
    page = Outline(compare([make("a"), make("b", seed=1), make("c", seed=2)]))
    assert page.sections == ["runs", "metrics", "samples", "flow", "curves", "recipe"]
    assert sum("film" in (attributes.get("class") or "") for attributes in page.all("div")) == 3
    assert len(page.all("input")) == 1


def test_a_damaged_or_failed_run_among_others_is_told_and_the_rest_shown(make):
    a, b = make("a"), make("b", facts={"status": "failed", "error": "out of luck"})
    (b / "frames.npz").write_bytes(b"nonsense")
    (b / "metrics.jsonl").unlink()
    page = Outline(compare([a, b]))
    assert "b: out of luck" in page.text
    assert "b: frames.npz cannot be read" in page.text


def test_nothing_breaks_out_of_a_comparison(make):
    folders = [make(f"r{i}", recipe={"name": f"{NASTY}{i}", NASTY: i}) for i in range(9)]
    page = Outline(compare(folders))
    assert len(page.all("script")) == 2
    assert all(picture["src"].startswith("data:") for picture in page.all("img"))
