"""A report shows what is in a run's folder, whatever that is, and nothing can break out of it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from cswf_core.pictures.frames import Frames
from cswf_core.report import is_report, single, write_report
from cswf_core.runs.folder import RunFolder
from tests.report.conftest import meaning, score

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
    folder = make(
        recipe={"name": NASTY, "description": NASTY, NASTY: {"use": NASTY}},
        facts={
            "command": NASTY,
            "citations": [NASTY],
            "licence": NASTY,
            **dict.fromkeys(("status", "error", "seed"), NASTY),
            "versions": {NASTY: NASTY},
            "device": {"name": NASTY},
        },
        scores=[
            score(NASTY, 1.0, protocol=NASTY, parameters={NASTY: NASTY}, against={"data": NASTY})
            | {"error": 0.1, "error_method": NASTY, "meaning": meaning("quality", NASTY)},
            *(score(f"a.{NASTY}{i}", 1.0) for i in range(2)),
        ],
        notes=(NASTY,),
    )
    harmless = Outline(single(make("harmless", scores=[score("fid", 1.0)])))
    page = Outline(single(folder))
    assert len(page.all("script")) == len(harmless.all("script")) == 2
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
    drawn = ("samples.png", "samples-offline.png", "flow.gif", "flow.png", "completions.png")
    for name in ("samples.npz", "real.npz", "frames.npz", *drawn, "nearest-neighbours.png"):
        (folder / name).unlink()
    page = Outline(single(folder))
    assert page.sections == ["curves", "metrics", "limitations", "downloads", "repeat", "recipe", "versions"]
    assert "stopped before its end" in page.text
    assert "3 of 40" in page.text
    error = "the particles ran away at step 12"
    page = Outline(single(make("failed", facts={"status": "failed", "error": error})))
    assert error in page.text
    assert {"class": "badge failed"} in page.all("span")


def test_a_run_without_frames_has_its_flow_as_it_was_drawn(make):
    folder = make()
    (folder / "frames.npz").unlink()
    (folder / "flow.gif").unlink()
    page = Outline(single(folder))
    assert "flow" in page.sections
    assert "The flow of small" in [picture["alt"] for picture in page.all("img")]


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
    folder = make(steps=10_001)
    (run,) = json.loads(Outline(single(folder)).scripts[0])["runs"]
    assert len(run["step"]) < 4000
    assert {1, 5000, 5001, 10_001} <= set(run["step"])
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


def test_points_are_drawn_over_their_target(make):
    folder = make()
    rng = np.random.default_rng(0)
    points = rng.normal(size=(4, 50, 2)).astype(np.float32)
    (folder / "frames.npz").write_bytes(Frames((0, 1, 2, 3), points=points, target=points[-1]).archive())
    np.savez(folder / "samples.npz", points=points[-1])
    (folder / "flow.gif").unlink()
    page = Outline(single(folder))
    assert sum(picture["src"].startswith("data:image/gif") for picture in page.all("img")) == 1


def test_a_report_is_written_into_the_run_s_folder_and_known_as_one(make):
    folder = make()
    write_report(RunFolder(folder))
    assert is_report(folder / "report.html")
    assert not is_report(folder / "recipe.yaml")
    assert not list(folder.glob(".*"))
