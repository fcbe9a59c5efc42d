"""Scores on a page: the result under the title, tables by subject, protocols, published numbers."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
import yaml

from cswf_core.report import single
from tests.report.conftest import full_scores, meaning, score, score_pair
from tests.report.test_report import Outline


def tables(page: str) -> dict[str, list[list[str]]]:
    """The tables of scores by their anchor, cell by cell as plain text."""
    listed = {}
    for anchor, table in re.findall(r'(?s)<h3 id="(scores-\w+)">.*?(<table.*?</table>)', page):
        rows = re.findall(r"(?s)<tr.*?</tr>", table)
        cells = [re.findall(r"(?s)<t[hd].*?</t[hd]>", row) for row in rows]
        listed[anchor] = [[" ".join(re.sub("<[^>]+>", " ", cell).split()) for cell in row] for row in cells]
    return listed


def test_the_result_stands_under_the_title_with_all_that_it_depends_on(make):
    page = single(make(scores=full_scores(), recipe={"data": {"use": "cifar10"}}))
    assert (
        page.index("<h1>") < page.index('id="result"') < page.index('id="samples"') < page.index('id="curves"')
    )
    text = page[page.index('id="result"') : page.index('id="samples"')]
    for fact in (
        "36.90 ± 0.21",
        "50,000",
        "cifar10 train (50,000)",
        "clean",
        "jackknife of 20 parts",
        "38.90 ± 0.21",
    ):
        assert fact in text, fact
    assert "near L2 15.9 ± 1.2 % (1 % expected)" in text


def test_the_result_is_fid_else_the_first_of_quality_and_never_of_real_images(make):
    real = score("accuracy_real", 0.9, meaning=meaning("quality", of_samples=False))
    other = score("kid", 0.03, meaning=meaning("quality"))
    coverage = score("recall", 0.5, meaning=meaning("coverage"))
    page = single(make("a", scores=[real, coverage, other]))
    assert re.search(r'class="headline"><span class="of">KID', page)
    assert re.search(
        r'class="headline"><span class="of">FID', single(make("b", scores=[other, score("fid", 2.0)]))
    )
    assert 'id="result"' not in single(make("c", scores=[real]))


def test_scores_are_grouped_with_percents_and_what_is_expected_beside_copies(make):
    assert tables(single(make(scores=full_scores()))) == {
        "scores-quality": [
            ["score", "training data", "held out"],
            ["FID ↓ Distance of features; 0 is equal.", "36.90 ± 0.21", "38.90 ± 0.21"],
        ],
        "scores-coverage": [["score", "value"], ["recall ↑", "50.00 %"]],
        "scores-condition": [["score", "value"], ["class accuracy real", "97.00 %"]],
        "scores-copying": [
            ["score", "value", "expected of real images"],
            ["near L2 Share of samples that are nearer than real ones.", "15.9 ± 1.2 %", "1 %"],
            ["nearest L2", "1.500", "1.900"],
        ],
    }


def test_scores_without_a_meaning_as_a_plugin_may_have_are_other_scores(make):
    listed = tables(single(make(scores=[score("fid", 5.0), score("mine", 3.0, "")])))
    assert listed == {"scores-other": [["score", "value"], ["FID ↓", "5.000"], ["mine", "3.000"]]}


def test_the_score_of_a_class_is_a_bar_beside_its_samples_and_in_no_table(make):
    page = single(make(scores=full_scores()))
    widths = re.findall(
        r'class="fill" style="width:([\d.]+)%"></span></span><span class="n">(\d+\.\d+)</span>', page
    )
    assert widths == [("100.0", "40.00"), ("50.0", "20.00"), ("25.0", "10.00")]
    assert "class fid.zero" not in Outline(page).text.lower()


def test_scores_of_classes_that_are_not_pictured_are_a_chart_among_the_scores(make):
    scores = [score(f"class_fid.{name}", 3.0, detail=True) for name in ("cat", "dog")]
    page = single(make(scores=scores))
    assert 'id="by-class-1"' in page
    assert page.index('id="metrics"') < page.index('<span class="who">cat</span>')


def test_a_protocol_is_told_once_for_a_metric(make):
    page = Outline(single(make(scores=full_scores())))
    assert page.text.count("By the book of FID.") == 1
    assert page.text.count("By the book of copies.") == 1


def test_scores_that_do_not_fit_together_are_told(make):
    mixed = [score("fid", 5.0, settings={"seed": 0}), score("kid", 5.0, settings={"seed": 3})]
    assert (
        "computed with different seeds of evaluation (0: fid; 3: kid)"
        in Outline(single(make(scores=mixed))).text
    )


def test_scores_against_train_and_test_stand_in_one_row_and_notes_in_sight(make):
    folder = make(
        scores=score_pair("fid", 57.914, 61.2, samples=50_000, protocol="By the book."),
        notes=("Ten thousand samples instead of fifty.",),
    )
    page = Outline(single(folder))
    assert re.search(r"score\s+training data\s+held out\s+FID\s+↓\s+57.91\s+61.20\s", page.text)
    assert "Ten thousand samples instead of fifty." in page.text
    assert "By the book." in page.text
    assert "50,000 samples" in page.text


def test_whether_a_score_is_of_held_out_samples_is_a_fact_and_not_its_name(make):
    page = Outline(single(make(scores=[score("turing_test", 0.5)])))
    assert "turing test" in page.text
    assert "held out" not in page.text


def test_without_scores_there_is_no_table(make):
    assert "metrics" not in Outline(single(make(scores=[]))).sections


@pytest.mark.parametrize(
    ("data", "peer"),
    [("cifar10", "66.5"), ("cifar10", "59.7"), ("celeba", "37.3"), ("mnist", "4.5"), ("fashion-mnist", "13.7")],
)
def test_published_scores_stand_beside_ours_in_order(make, data, peer):
    html = single(make(recipe={"data": {"use": data}}, scores=[score("fid", 38.0)]))
    bars = re.findall(r'<li class="(\w+)">.*?<span class="n">(&gt;)?([\d.]+)</span></li>', html)
    known = yaml.safe_load((files("cswf_core.report") / "published.yaml").read_text(encoding="utf-8"))
    values = [float(value) for _, _, value in bars]
    assert values == sorted(values)
    assert len(bars) == len(known[data]["fid"]) + 1
    assert ("ours", "", "38.00") in bars
    assert ("peer", "", peer) in bars


def test_published_digits_are_printed_as_they_were_written(make):
    html = single(make(recipe={"data": {"use": "cifar10"}}, scores=[score("fid", 38.0)]))
    for digits in ("17.0", "120.0", "&gt;200"):
        assert f'<span class="n">{digits}</span>' in html


@pytest.mark.parametrize("data", ["cifar10", "celeba", "mnist", "fashion-mnist"])
def test_a_chart_of_published_scores_says_where_they_are_from_and_that_their_protocol_is_not_stated(make, data):
    text = " ".join(
        Outline(single(make(recipe={"data": {"use": data}}, scores=[score("fid", 38.0)]))).text.split()
    )
    assert "the paper does not state its protocol" in text
    assert ("Dai & Seljak 2021, Sliced Iterative Normalizing Flows, ICML" in text) == ("mnist" in data)


def test_published_scores_are_left_out_where_ours_is_another_thing(make):
    against = {"data": "mnist", "split": "train"}
    folder = make(recipe={"data": {"use": "cifar10"}}, scores=[score("fid", 38.0, against=against)])
    assert 'class="bars"' not in single(folder)
