"""Names and texts of strangers on a terminal: whatever is in them is shown, and nothing of it is obeyed."""

from __future__ import annotations

import json
import logging
import re

import numpy as np
import pytest
from PIL import Image

from cswf_core.errors import DataError, printable
from cswf_core.runs.printing import complain, say, say_json, start_log
from cswf_core.runs.screen import WorkProgress, in_letters, table
from tests.cli.conftest import write_plugin
from tests.conftest import Outcome
from tests.report.conftest import make_run, score

HOSTILE = "\x1b]0;mine\x07\x1b[2J[red]:boom:[/red] $\\frac$ <b>\r\x08\x9b31m\u202e\u2028\nforged: all is fine"
"""A window's title, a cleared screen, markup, a mistake of TeX, HTML, turned writing, and a line of its own."""

TINY = ("particles.count=4", "schedule.steps=2", "schedule.directions=64", "outputs={frames: 0, snapshots: []}")


def harmless(done: Outcome | str) -> str:
    """What was printed, of which nothing is obeyed and no line is a stranger's."""
    printed = done if isinstance(done, str) else done.out + done.err
    assert all(c.isprintable() or c == "\n" for c in printed), ascii(printed)
    # Farther to the right it is in a column of a table, which wraps its text.
    assert not re.search(r"^\W{0,12}forged", printed, re.MULTILINE), printed
    assert "Traceback" not in printed
    return printed


@pytest.fixture
def recipe(tmp_path):
    """A recipe whose texts are all hostile, in a file whose name is."""
    text = json.dumps(HOSTILE)
    file = tmp_path / "\x1b[31m\nforged.yaml"
    file.write_text(
        f"extends: digits\nname: {text}\ndescription: {text}\n"
        f"variants:\n  {text}: {{seed: 1}}\n  other: {{seed: 2}}\n"
    )
    return file


@pytest.mark.parametrize("command", ["check", "show", "cite"])
def test_a_recipe_is_shown(cswf, recipe, command):
    printed = harmless(cswf.output(command, recipe))
    assert r"\x1b" in printed or command == "cite"


def test_json_stays_json(cswf, recipe):
    shown = cswf.output("show", recipe, "--json")
    assert json.loads(harmless(shown))["recipe"]["name"] == HOSTILE
    strange = "\U000e0001\ud800\x7f"
    say_json({strange: strange})


def test_the_mistakes_of_a_recipe_are_lines_of_their_own(cswf, recipe):
    recipe.write_text(f"extends: digits\n{json.dumps(HOSTILE)}: 1\nseed: {json.dumps(HOSTILE)}\n")
    done = cswf("check", recipe)
    assert done.status == 2
    assert len(harmless(done).splitlines()) == 2
    harmless(cswf.refusal("check", "digits", f"seed={HOSTILE}"))
    for words in ((HOSTILE,), ("digits", "--device", HOSTILE), ("digits", f"--{HOSTILE}")):
        harmless(cswf("run", *words))


def test_a_sweep_has_a_line_for_each_run_whatever_its_label(cswf, recipe, tmp_path):
    out = tmp_path / "sweep"
    printed = harmless(cswf.output("sweep", recipe, *TINY, "--device", "cpu", "--out", out))
    assert len(re.findall(r"^\\x1b\]0;mine.*:boom:.* [0-9.]+", printed, re.MULTILINE)) == 2  # it, and the mean
    assert {path.parent.parent for path in out.rglob("run.json")} == {out}


def test_folders_of_classes_are_shown(cswf, tmp_path, monkeypatch):
    monkeypatch.setenv("CSWF_DATA", str(tmp_path / "cache"))
    hostile = HOSTILE.replace("/", "")
    for name in (hostile, "other"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(3):
            picture = Image.fromarray(np.full((8, 8, 3), 40 * number, np.uint8))
            picture.save(tmp_path / "images" / name / f"{hostile}{number}.png")
    data = f"data={{use: image-folder, path: {json.dumps(str(tmp_path / 'images'))}, size: 8}}"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("extends: digits\nmodel: {save: true}\n")
    run = tmp_path / "run"
    done = cswf("run", recipe, data, *TINY, "--out", run, "--device", "cpu")
    assert done.status == 0, done.err
    harmless(done)
    assert r"classes \x1b]0;mine" in harmless(cswf.output("inspect", run))
    json.loads(harmless(cswf.output("inspect", run, "--json")))
    harmless(cswf.output("sample", run, "--count", "4", "--out", tmp_path / "drawn"))
    drawn = list((tmp_path / "drawn").iterdir())
    assert len(drawn) == 4
    assert all(re.fullmatch(r"[\w.-]+", path.name) for path in drawn)
    harmless(cswf.output("eval", run, "--metric", "sliced-wasserstein"))
    harmless(cswf.output("report", run))
    harmless(cswf.refusal("sample", run, "--label", "none such"))
    harmless(cswf.output("data", "pack", run / "recipe.yaml", tmp_path / "packed"))
    harmless(cswf.output("data", "info", tmp_path / "packed"))


def test_a_run_of_a_stranger_is_shown(cswf, tmp_path):
    facts = {"name": HOSTILE, "status": "failed", "error": HOSTILE, "device": {"name": HOSTILE}}
    scores = [score(HOSTILE, 1.0, row=HOSTILE, samples=3, protocol=HOSTILE, against={"data": HOSTILE})]
    run = make_run(tmp_path / "run\x1b[31m", facts=facts, scores=scores, notes=(HOSTILE,))
    harmless(cswf("report", run))
    for command in ("resume", "inspect", "sample", "eval", "update"):
        done = cswf(command, run)
        assert done.status in (1, 2)
        harmless(done)


def test_a_plugin_is_shown(cswf, tmp_path):
    body = """
    __doc__ = HOSTILE
    size: int = parameter(HOSTILE, default=1)
    def compute(self, comparison): raise ValueError(HOSTILE)
    """
    write_plugin(tmp_path / "strange.py", "metric", body, f"HOSTILE = {HOSTILE!r}")
    (tmp_path / "broken.py").write_text(f"from cswf_core import hookimpl\nraise ImportError({HOSTILE!r})")
    (tmp_path / "warned.py").write_text("import cswf_core\n")
    options = ("--plugins-dir", tmp_path)
    assert ":boom:" in harmless(cswf.output("plugins", *options))
    json.loads(harmless(cswf.output("plugins", "--json", *options)))
    harmless(cswf("plugins", "check", "strange", *options))
    assert r"\x1b]0;mine" in cswf.output("plugins", "strange", *options)


def test_a_traceback_is_shown(cswf, tmp_path):
    done = cswf("check", tmp_path / HOSTILE.replace("/", ""), "--traceback")
    assert all(c.isprintable() or c == "\n" for c in done.err)
    assert "Traceback" in done.err


def test_an_error_is_as_many_lines_as_it_has_sentences():
    assert str(DataError("first", f"second {HOSTILE}")) == f"first\nsecond {printable(HOSTILE)}"
    assert printable("plain, mit Ümläuten und 漢字 – ×") == "plain, mit Ümläuten und 漢字 – ×"


def test_a_log_has_a_line_for_each_warning(capsys):
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        start_log(logging.WARNING)
        logging.getLogger("cswf").warning("damaged: %s", HOSTILE)
        assert len(harmless(capsys.readouterr().err).splitlines()) == 1
    finally:
        root.handlers = before


def test_progress_takes_no_text_for_a_style(capsys):
    WorkProgress(seconds=0.0).tell(HOSTILE, 1, 2)
    assert "[red]:boom:[/red]" in harmless(capsys.readouterr().err)


def test_texts_and_tables_are_one_line_for_each_line_that_is_meant(capsys):
    say(HOSTILE, "second")
    complain(HOSTILE)
    captured = capsys.readouterr()
    assert len(harmless(captured.out).splitlines()) == 2
    assert len(harmless(captured.err).splitlines()) == 1
    lines = harmless(in_letters(table(("name", HOSTILE), [(HOSTILE, ["two", "lines"])]), 400)).splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["fine", "two", "lines"]
