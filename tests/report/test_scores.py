"""Scores on a page: the result under the title, tables by subject, protocols, published numbers."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
import yaml

from cswf_core.report import single
from tests.report.conftest import full_scores, meaning, score
from tests.report.test_report import Outline


def tables(page: str) -> dict[str, list[list[str]]]:
    """The tables of scores by their anchor, cell by cell as plain text."""
    listed = {}
    for anchor, table in re.findall(r'(?s)<h3 id="(scores-\w+)">.*?(<table.*?</table>)', page):
        rows = re.findall(r"(?s)<tr.*?</tr>", table)
        cells = [re.findall(r"(?s)<t[hd].*?</t[hd]>", row) for row in rows]
        listed[anchor] = [[" ".join(re.sub("<[^>]+>", " ", cell).split()) for cell in row] for row in cells]
    return listed


REAL = score("accuracy_real", 0.9, meaning=meaning("quality", of_samples=False))
KID = score("kid", 0.03, meaning=meaning("quality"))


def test_the_result_stands_under_the_title_with_all_that_it_depends_on(make):
    page = single(make(scores=full_scores(), recipe={"data": {"use": "cifar10"}}, notes=("Few samples.",)))
    places = [page.index(text) for text in ("<h1>", 'id="result"', 'id="samples"', 'id="curves"')]
    assert places == sorted(places)
    text = page[places[1] : places[2]]
    facts = (
        "36.90 ± 0.21",
        "50,000",
        "cifar10 train (50,000)",
        "clean",
        "jackknife of 20 parts",
        "38.90 ± 0.21",
    )
    for fact in facts:
        assert fact in text, fact
    assert "near L2 15.9 ± 1.2 % (1 % expected)" in text
    told = Outline(page).text
    assert "Few samples." in told
    assert "50,000 samples" in told
    for protocol in ("By the book of FID.", "By the book of copies."):
        assert told.count(protocol) == 1


@pytest.mark.parametrize(
    ("scores", "headline"),
    [
        ((REAL, score("recall", 0.5, meaning=meaning("coverage")), KID), ["KID"]),
        ((KID, score("fid", 2.0)), ["FID"]),
        ((REAL,), []),
        ((), []),
    ],
)
def test_the_result_is_fid_else_the_first_of_quality_and_never_of_real_images(make, scores, headline):
    page = single(make(scores=list(scores)))
    assert re.findall(r'class="headline"><span class="of">(\w+)', page) == headline
    assert ('id="result"' in page) == bool(headline)
    assert ("metrics" in Outline(page).sections) == bool(scores)


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
    """Whether a score is of held-out samples is a fact and not its name."""
    page = single(make(scores=[score("fid", 5.0), score("turing_test", 3.0, "")]))
    expected = [["score", "value"], ["FID ↓", "5.000"], ["turing test", "3.000"]]
    assert tables(page) == {"scores-other": expected}


def test_the_score_of_a_class_is_a_bar_beside_its_samples_or_among_the_scores_and_in_no_table(make):
    page = single(make("a", scores=full_scores()))
    bar = r'class="fill" style="width:([\d.]+)%"></span></span><span class="n">(\d+\.\d+)</span>'
    assert re.findall(bar, page) == [("100.0", "40.00"), ("50.0", "20.00"), ("25.0", "10.00")]
    assert "class fid.zero" not in Outline(page).text.lower()
    others = [score(f"class_fid.{name}", 3.0, detail=True) for name in ("cat", "dog")]
    page = single(make("b", scores=others))  # these classes are not pictured
    assert 'id="by-class-1"' in page
    assert page.index('id="metrics"') < page.index('<span class="who">cat</span>')


def test_scores_that_do_not_fit_together_are_told(make):
    mixed = [score("fid", 5.0, settings={"seed": 0}), score("kid", 5.0, settings={"seed": 3})]
    said = "computed with different seeds of evaluation (0: fid; 3: kid)"
    assert said in Outline(single(make(scores=mixed))).text


@pytest.mark.parametrize(
    ("data", "peers"),
    [
        ("cifar10", ["66.5", "59.7", "17.0", "120.0", "&gt;200"]),
        ("celeba", ["37.3"]),
        ("mnist", ["4.5"]),
        ("fashion-mnist", ["13.7"]),
    ],
)
def test_published_scores_stand_beside_ours_in_order_with_their_digits_and_source(make, data, peers):
    html = single(make(recipe={"data": {"use": data}}, scores=[score("fid", 38.0)]))
    bars = re.findall(r'<li class="(\w+)">.*?<span class="n">(&gt;)?([\d.]+)</span></li>', html)
    known = yaml.safe_load((files("cswf_core.report") / "published.yaml").read_text(encoding="utf-8"))
    values = [float(value) for _, _, value in bars]
    assert values == sorted(values)
    assert len(bars) == len(known[data]["fid"]) + 1
    assert ("ours", "", "38.00") in bars
    for digits in peers:
        assert f'<span class="n">{digits}</span>' in html
    text = " ".join(Outline(html).text.split())
    assert "the paper does not state its protocol" in text
    assert ("Dai & Seljak 2021, Sliced Iterative Normalizing Flows, ICML" in text) == ("mnist" in data)


def test_published_scores_are_left_out_where_ours_is_another_thing(make):
    against = {"data": "mnist", "split": "train"}
    folder = make(recipe={"data": {"use": "cifar10"}}, scores=[score("fid", 38.0, against=against)])
    assert 'class="bars"' not in single(folder)
