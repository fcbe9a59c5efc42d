"""Downloads, the command to repeat, BibTeX, licence and limitations; the page of an evaluation."""

from __future__ import annotations

import base64
import csv
import json

import numpy as np
from PIL import Image

from cswf_core.pictures.grid import png
from cswf_core.report import compare, single
from tests.report.conftest import full_scores, score
from tests.report.test_report import Outline

BIBTEX = "@misc{one,\n  title = {One}\n}"


def saved(page: str, name: str) -> bytes:
    """The content of a file that the page lets a reader save."""
    (link,) = (link for link in Outline(page).all("a") if link.get("download") == name)
    return base64.b64decode(link["href"].partition("base64,")[2])


def limits(page: str) -> str:
    return page[page.index('id="limitations"') : page.index('id="downloads"')]


def test_what_is_saved_is_the_file_itself_and_a_table_of_all_scores(make):
    folder = make(scores=full_scores())
    page = single(folder)
    assert saved(page, "metrics.json") == (folder / "metrics.json").read_bytes()
    rows = list(csv.DictReader(saved(page, "scores.csv").decode().splitlines()))
    assert [row["score"] for row in rows] == [entry["name"] for entry in full_scores()]
    assert (rows[0]["value"], rows[0]["standard error"], rows[0]["split"]) == ("36.9", "0.21", "train")
    assert rows[2]["standard error"] == ""


def test_a_name_that_a_spreadsheet_would_compute_is_text(make):
    page = single(make(scores=[score("=1+1", 5.0)]))
    assert saved(page, "scores.csv").decode().splitlines()[1].startswith("'=1+1,5.0")


def test_the_command_that_made_a_run_can_be_copied_and_else_one_that_reads_its_recipe(make):
    told = single(
        make(
            "a",
            facts={"command": "cswf run digits --seed 3"},
            scores=[score("fid", 1.0, command="cswf eval x")],
        )
    )
    assert "cswf run digits --seed 3\ncswf eval x" in Outline(told).text
    assert "cswf run recipe.yaml" in Outline(single(make("b"))).text


def test_citations_and_the_licence_of_the_data_stand_on_the_page(make):
    page = single(make("a", facts={"citations": [BIBTEX, BIBTEX], "licence": "CC0, from somewhere."}))
    assert f"{BIBTEX}\n\n{BIBTEX}" in Outline(page).text
    assert "CC0, from somewhere." in page
    assert "cite" not in Outline(single(make("b"))).sections


def test_limitations_are_those_of_this_run(make):
    text = limits(single(make("a", scores=full_scores())))
    assert "one run: another seed gives others; the ± beside a score is of its samples" in text
    assert "No uncertainty was computed of recall and nearest L2." in text
    assert "The reference of FID is the training set" in text
    assert "no score is against held-out" not in text
    assert "published numbers are of" not in text
    assert "Copies were looked for by their pixels among 1,000 samples" in text
    against = {"split": "train"}
    few = limits(single(make("b", scores=[score("fid", 5.0, samples=1000, against=against)])))
    assert "FID is of 1,000 samples, and published numbers are of 50,000" in few
    assert "no score is against held-out samples" in few
    assert "Copies of training images were not looked for." in few
    assert "ImageNet" in few
    assert "ImageNet" not in limits(single(make("c", scores=[score("sliced_wasserstein", 5.0)])))


def test_an_evaluation_of_any_images_has_a_page(tmp_path):
    folder = tmp_path / "scores"
    folder.mkdir()
    content = {
        "format": 2,
        "generated": {"source": "pictures/", "count": 60},
        "scores": full_scores(),
        "figures": [],
    }
    (folder / "metrics.json").write_text(json.dumps(content))
    (folder / "samples.png").write_bytes(png(Image.new("RGB", (64, 64))))
    page = Outline(single(folder))
    assert page.sections == ["samples", "metrics", "limitations", "downloads"]
    assert "cswf evaluation" in page.text
    assert "pictures/" in page.text
    assert "How it ended is not known" not in page.text
    assert "one run" not in page.text
    assert compare([folder, folder])


def test_of_many_samples_some_are_in_the_page_and_a_sentence_says_of_how_many(make):
    assert "Some of 60 samples." in single(make())


def test_real_images_stand_beside_samples_where_there_are_some(make):
    folder = make()
    assert "real images of zero" in single(folder)
    np.savez(folder / "real.npz", images=np.zeros((9, 1, 8, 8), np.uint8))
    np.savez(folder / "samples.npz", images=np.zeros((9, 1, 8, 8), np.uint8))
    assert "9 real images" in single(folder)
    (folder / "real.npz").unlink()
    assert "real images" not in single(folder)


def test_every_link_within_a_page_leads_somewhere(make):
    for page in (
        single(make("a", scores=full_scores(), recipe={"data": {"use": "cifar10"}})),
        compare([make("b"), make("c")]),
    ):
        outline = Outline(page)
        ids = [attributes["id"] for _, attributes in outline.elements if attributes.get("id")]
        links = {link["href"][1:] for link in outline.all("a") if link["href"].startswith("#")}
        assert links <= set(ids)
        assert len(ids) == len(set(ids))


def test_a_figure_has_an_anchor_a_heading_and_its_sentence(make):
    folder = make(scores=full_scores())
    content = json.loads((folder / "metrics.json").read_text())
    content["leads"] = {"nearest-neighbours.png": "One sample of each class."}
    (folder / "metrics.json").write_text(json.dumps(content))
    page = single(folder)
    assert page.index('id="figure-nearest-neighbours"') < page.index("One sample of each class.")
