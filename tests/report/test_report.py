"""A report shows what is in a run's folder, whatever that is, and nothing can break out of it."""

from __future__ import annotations

import base64
import csv
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from cswf_core.pictures.frames import Frames
from cswf_core.pictures.grid import png
from cswf_core.report import compare, is_report, single
from tests.report.conftest import full_scores, meaning, score

VOID = {"img", "input", "meta", "br"}  # elements that have no content
NASTY = """</script><script>alert(1)</script><img src=x onerror="alert(2)"> & ' " --> \u2028"""
UNSEEN = "\x1b[2J\r\x07\x9b\u202e\ud800"
"""What a terminal obeys, what turns the direction of writing, and half a character."""


class Outline(HTMLParser):
    """Every element with its attributes, and what stands in scripts and in the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.scripts: list[str] = []
        self.feed(page)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        self.text += " " if tag in ("td", "th") else ""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.text += data

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]

    @property
    def sections(self) -> list[str | None]:
        return [attributes["id"] for attributes in self.all("section")]


def test_a_report_has_a_section_for_all_that_a_run_has_and_words_for_all_pictures(make):
    page = Outline(single(make(scores=[score("fid", 5.0)], facts={"licence": "Free."})))
    pictures = ["samples", "offline", "completions", "curves", "flow", "metrics", "neighbours"]
    names = [*pictures, "limitations", "downloads", "repeat", "recipe", "cite", "versions"]
    assert page.sections == names
    assert [link["href"] for link in page.all("a")][: len(names)] == [f"#{name}" for name in names]
    facts = ("CPU x86_64, 2 threads", "1,797 samples", "3.5 s")
    for word in ("small", "A small one.", *facts, "zero", "two", "done"):
        assert word in page.text, word
    assert all(picture["alt"] for picture in page.all("img"))


def test_a_report_refers_to_nothing_outside_itself(make):
    html = single(make(scores=[score("fid", 5.0)]))
    page = Outline(html)
    for name, attributes in page.elements:
        for key in ("src", "href", "srcset", "action", "poster", "data"):
            address = attributes.get(key)
            within = ("data:image/", "data:application/json;", "data:text/csv;", "#")
            assert address in (None, "samples.npz") or address.startswith(within), (name, key, address[:60])
    without_pictures = re.sub(r"data:[a-z]+/[a-z]+;base64,[A-Za-z0-9+/=]+", "", html)
    allowed = without_pictures.replace("http://www.w3.org/2000/svg", "")  # a name of SVG, not an address
    assert not re.search(r"https?:|@import|url\((?!#)", allowed)
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv"))
    assert "default-src 'none'" in policy


def test_nothing_in_a_recipe_or_a_record_becomes_html(make):
    about = {"protocol": NASTY, "parameters": {NASTY: NASTY}, "against": {"data": NASTY}}
    unsure = {"error": 0.1, "error_method": NASTY, "meaning": meaning("quality", NASTY)}
    record = dict.fromkeys(("status", "error", "seed", "command", "licence"), NASTY)
    folder = make(
        recipe={"name": NASTY, "description": NASTY, NASTY: {"use": NASTY}},
        facts={**record, "citations": [NASTY], "versions": {NASTY: NASTY}, "device": {"name": NASTY}},
        scores=[score(NASTY, 1.0, **about) | unsure, *(score(f"a.{NASTY}{i}", 1.0) for i in range(2))],
        notes=(NASTY,),
    )
    page = Outline(single(folder))
    assert len(page.all("script")) == 2
    assert not any("onerror" in attributes for _, attributes in page.elements)
    assert all(picture["src"].startswith("data:") for picture in page.all("img"))
    assert "alert" not in page.scripts[-1]
    assert json.loads(page.scripts[0])["runs"][0]["label"] == NASTY.replace("\u2028", r"\u2028")
    assert not set("<>&\u2028") & set(page.scripts[0])  # nothing in it can end it early
    assert page.text.count("<script>alert(1)</script>") >= 10


def test_what_cannot_be_seen_is_shown_as_an_escape(make, cswf):
    folder = make(
        facts={"name": UNSEEN, "status": UNSEEN, "error": UNSEEN, "versions": {UNSEEN: UNSEEN}},
        scores=[score(UNSEEN, 1.0, protocol=UNSEEN)],
        notes=(f"javascript:{UNSEEN}",),
    )
    cswf.output("report", folder)
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert all(c.isprintable() or c == "\n" for c in html)
    assert Outline(html).text.count(r"\x1b[2J\r\x07\x9b\u202e\ud800") >= 6
    assert not [link for link in Outline(html).all("a") if link["href"].startswith("javascript:")]


def test_a_run_that_has_only_begun_or_failed_gets_a_report_of_what_there_is(make):
    folder = make(facts={"status": "interrupted", "steps_done": 3})
    for name in ("frames.npz", "flow.gif"):
        (folder / name).unlink()
    page = Outline(single(folder))
    assert "flow" in page.sections
    assert "The flow of small" in [picture["alt"] for picture in page.all("img")]  # as it was drawn
    drawn = ("samples.png", "samples-offline.png", "flow.png", "completions.png", "nearest-neighbours.png")
    for name in ("samples.npz", "real.npz", *drawn):
        (folder / name).unlink()
    page = Outline(single(folder))
    assert page.sections == ["curves", "metrics", "limitations", "downloads", "repeat", "recipe", "versions"]
    assert "stopped before its end" in page.text
    assert "3 of 40" in page.text
    error = "the particles ran away at step 12"
    page = Outline(single(make("failed", facts={"status": "failed", "error": error})))
    assert error in page.text
    assert {"class": "badge failed"} in page.all("span")


def test_points_are_drawn_over_their_target(make):
    folder = make()
    points = np.random.default_rng(0).normal(size=(2, 20, 2)).astype(np.float32)
    (folder / "frames.npz").write_bytes(Frames((0, 1), points=points, target=points[-1]).archive())
    np.savez(folder / "samples.npz", points=points[-1])
    (folder / "flow.gif").unlink()
    pictures = Outline(single(folder)).all("img")
    assert sum(picture["src"].startswith("data:image/gif") for picture in pictures) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", b"{"),
        ("recipe.yaml", b"a: [\xff"),
        ("metrics.jsonl", b'{"step": 1}\nnonsense\n{"step": 2}\n'),
        ("samples.npz", b"PK nonsense"),
        ("real.npz", b"PK nonsense"),
        ("frames.npz", b"nonsense"),
        ("flow.gif", b"nonsense"),
        ("completions.png", b"\x89PNG"),
        ("nearest-neighbours.png", b""),
        ("metrics.json", b'{"scores": 3}'),
        ("metrics.json", b'{"format": 1, "scores": []}'),
        ("metrics.json", b'{"format": 2, "scores": [{"name": "fid"}]}'),
    ],
)
def test_a_damaged_file_is_a_sentence_and_the_rest_is_shown(make, name, content):
    folder = make(scores=[score("fid", 5.0)])
    (folder / name).write_bytes(content)
    page = Outline(single(folder))
    told = [attributes for attributes in page.all("p") if attributes.get("class") == "problem"]
    assert len(told) == 1
    assert f"{name} cannot be read: " in page.text
    assert {"samples", "versions"} - {"versions" if name == "run.json" else ""} <= set(page.sections)


@pytest.mark.parametrize("name", ["run.json", "metrics.json", "metrics.jsonl", "recipe.yaml"])
@pytest.mark.parametrize("content", [b"[]", b"null", b'{"data": 3, "versions": [], "scores": null}', b""])
def test_a_file_of_another_shape_stops_nothing(make, name, content):
    folder = make()
    (folder / name).write_bytes(content)
    assert "samples" in Outline(single(folder)).sections


def test_a_log_cut_off_in_its_last_line_is_shown_to_that_line(make):
    folder = make()
    with (folder / "metrics.jsonl").open("a") as log:
        log.write('{"step": 41, "sta')
    page = Outline(single(folder))
    assert json.loads(page.scripts[0])["runs"][0]["step"] == list(range(1, 41))
    assert "cannot be read" not in page.text


def test_a_long_log_is_thinned_and_keeps_its_ends_and_those_of_stages(make):
    folder = make(steps=6_001)
    (run,) = json.loads(Outline(single(folder)).scripts[0])["runs"]
    assert len(run["step"]) < 4000
    assert {1, 3000, 3001, 6_001} <= set(run["step"])
    assert run["milliseconds"][0] is None
    assert run["milliseconds"][5] == pytest.approx(20, rel=0.01)


def test_a_report_of_colour_images_stays_below_fourteen_megabytes(make):
    """Noise is the worst case: it cannot be packed."""
    folder = make(shape=(3, 32, 32))
    rng = np.random.default_rng(0)
    moving = rng.integers(0, 256, (24, 50, 3, 32, 32), dtype=np.uint8)
    labels = np.repeat(np.arange(10), 5)
    frames = Frames(tuple(range(24)), images=moving, labels=labels, classes=tuple("abcdefghij"))
    (folder / "frames.npz").write_bytes(frames.archive())
    (folder / "flow.gif").write_bytes(frames.gif())
    images = rng.integers(0, 256, (1400, 3, 32, 32), dtype=np.uint8)
    np.savez(folder / "samples.npz", images=images, labels=np.arange(1400) % 10)
    page = single(folder)
    assert 2e6 < len(page) < 14e6
    assert 'src="data:image/gif' in page


def test_one_run_gets_its_own_page(cswf, make, tmp_path):
    folder = make()
    page = folder / "report.html"
    for _ in range(2):
        assert cswf.output("report", folder) == f"see {page}\n"
    assert is_report(page)
    assert not is_report(folder / "recipe.yaml")
    assert not list(folder.glob(".*"))
    cswf.output("report", folder, "--out", tmp_path / "elsewhere.html")
    assert 'href="samples.npz"' in page.read_text()
    assert 'href="samples.npz"' not in (tmp_path / "elsewhere.html").read_text()


def test_several_runs_get_one_page_in_the_current_folder(cswf, make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cswf.output("report", make("a"), make("b")) == "see report.html\n"
    assert is_report(tmp_path / "report.html")
    assert not (tmp_path / "a/report.html").exists()


def test_what_is_not_a_report_is_replaced_by_force_only(cswf, make, tmp_path):
    mine, run = tmp_path / "page.html", make()
    mine.write_text("mine")
    assert "is not a page of cswf report" in cswf.refusal("report", run, run, "--out", mine)
    assert mine.read_text() == "mine"
    cswf.output("report", run, "--out", mine, "--force")
    assert is_report(mine)
    assert "is a folder" in cswf("report", run, "--out", tmp_path).err
    assert cswf("report", run, "--out", tmp_path / "no/where.html").status == 2


def test_a_folder_that_is_no_run_is_a_sentence(cswf, tmp_path, make):
    good = make()
    said = "is not the folder of a run or an evaluation: it has none of run.json, recipe.yaml and metrics.json"
    for wrong in (tmp_path, tmp_path / "nowhere"):
        assert cswf.refusal("report", good, wrong) == f"{wrong} {said}\n"


BIBTEX = "@misc{one,\n  title = {One}\n}"


def saved(page: str, name: str) -> bytes:
    """The content of a file that the page lets a reader save."""
    (link,) = (link for link in Outline(page).all("a") if link.get("download") == name)
    return base64.b64decode(link["href"].partition("base64,")[2])


def limits(page: str) -> str:
    return page[page.index('id="limitations"') : page.index('id="downloads"')]


def test_what_is_saved_is_the_file_itself_and_a_table_of_all_scores(make):
    folder = make(scores=[*full_scores(), score("=1+1", 5.0)])
    page = single(folder)
    assert saved(page, "metrics.json") == (folder / "metrics.json").read_bytes()
    rows = list(csv.DictReader(saved(page, "scores.csv").decode().splitlines()))
    names = [entry["name"] for entry in full_scores()]
    assert [row["score"] for row in rows] == [*names, "'=1+1"]  # which a spreadsheet would compute
    assert (rows[0]["value"], rows[0]["standard error"], rows[0]["split"]) == ("36.9", "0.21", "train")
    assert rows[2]["standard error"] == ""


def test_command_citations_and_licence_stand_on_the_page_and_else_a_command_that_reads_the_recipe(make):
    facts = {
        "command": "cswf run digits --seed 3",
        "citations": [BIBTEX, BIBTEX],
        "licence": "CC0, from somewhere.",
    }
    told = Outline(single(make("a", facts=facts, scores=[score("fid", 1.0, command="cswf eval x")]))).text
    for text in ("cswf run digits --seed 3\ncswf eval x", f"{BIBTEX}\n\n{BIBTEX}", "CC0, from somewhere."):
        assert text in told
    plain = Outline(single(make("b")))
    assert "cswf run recipe.yaml" in plain.text
    assert "cite" not in plain.sections


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
    generated = {"source": "pictures/", "count": 60}
    content = {"format": 2, "generated": generated, "scores": full_scores(), "figures": []}
    (tmp_path / "metrics.json").write_text(json.dumps(content))
    (tmp_path / "samples.png").write_bytes(png(Image.new("RGB", (64, 64))))
    page = Outline(single(tmp_path))
    assert page.sections == ["samples", "metrics", "limitations", "downloads"]
    assert "cswf evaluation" in page.text
    assert "pictures/" in page.text
    assert "How it ended is not known" not in page.text
    assert "one run" not in page.text
    assert compare([tmp_path, tmp_path])


def test_real_images_stand_beside_samples_where_there_are_some(make):
    folder = make()
    page = single(folder)
    assert "real images of zero" in page
    assert "Some of 60 samples." in page
    for name in ("real.npz", "samples.npz"):
        np.savez(folder / name, images=np.zeros((9, 1, 8, 8), np.uint8))
    assert "9 real images" in single(folder)
    (folder / "real.npz").unlink()
    assert "real images" not in single(folder)


def test_every_link_within_a_page_leads_somewhere_and_a_figure_has_its_sentence(make):
    folder = make("a", scores=full_scores(), recipe={"data": {"use": "cifar10"}})
    content = json.loads((folder / "metrics.json").read_text())
    content["leads"] = {"nearest-neighbours.png": "One sample of each class."}
    (folder / "metrics.json").write_text(json.dumps(content))
    page = single(folder)
    assert page.index('id="figure-nearest-neighbours"') < page.index("One sample of each class.")
    for html in (page, compare([folder, make("c")])):
        outline = Outline(html)
        ids = [attributes["id"] for _, attributes in outline.elements if attributes.get("id")]
        links = {link["href"][1:] for link in outline.all("a") if link["href"].startswith("#")}
        assert links <= set(ids)
        assert len(ids) == len(set(ids))
