"""`cswf new` writes packages that install, pass the kit and run, like the examples; other names are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cswf_core.plugins import KINDS
from tests.processes import PYTHON, completed
from tests.project.sources import ROOT

NAMES = {
    "projection": "few-entries",
    "cdf": "straight-lines",
    "condition": "ordered",
    "schedule": "cooling",
    "coordinates": "spread",
    "dataset": "rings",
    "metric": "energy",
    "observer": "table2",
}

CHECK = """
import sys
from cswf_core.cli import main
from cswf_core.plugins import Registry
from cswf_core.recipe import load_recipe
first, *others = sys.argv[1:]
registry = Registry.discover()
print(*(load_recipe(path, registry=registry).name for path in (first, *others)))
sys.argv = ["cswf", "run", first, "schedule.steps=5", "--quiet", "--out", "run"]
main()
"""
"""A program that prints the names of recipes that are valid, and runs the first of them."""

EXAMPLES = {"cswf-strokes": 3, "cswf-more-metrics": 34}
"""Packages in `examples/`, and how many tests each has."""


def test_it_says_what_it_wrote_and_what_to_do_next(cswf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written, _, following = cswf.output("new", "projection", "few-entries").partition("\nNext:\n")
    assert sorted(written.split()) == sorted(str(p) for p in Path("cswf-few-entries").rglob("*") if p.is_file())
    assert "  cd cswf-few-entries\n" in following
    assert "  cswf run few-entries.yaml\n" in following
    (tmp_path / "here").mkdir()
    assert "here/cswf_few_entries.py" in cswf.output("new", "projection", "few-entries", "here")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("projektion", "strokes"), "there is no kind of plugin 'projektion'; did you mean 'projection'?"),
        (("widget", "strokes"), "there is no kind of plugin 'widget'; known: cdf, condition, coordinates"),
        (("projection", "MyStrokes"), "'MyStrokes' cannot be the name of a plugin: small letters a to z"),
        (("projection", "MyStrokes"), "; did you mean 'my-strokes'?"),
        (("projection", "3d"), "; did you mean 'my-3d'?"),
        (("projection", "../up"), "did you mean 'up'?"),
        (("projection", "s" * 31), "30 at most"),
        (("projection", "lambda"), "'lambda' is a word of Python's own; take another, such as my-lambda"),
        (("projection", "none"), "'none' is a word of Python's own; take another, such as my-none"),
        (("schedule", "stage"), "the class the name Stage, which its file has for something else"),
        (("projection", "uniform"), "there is a projection 'uniform' already"),
        (("projection", "strokes", "taken"), "taken is there already, and not empty: name another folder"),
        (("projection", "strokes", "taken/file"), "taken/file is a file: name another folder"),
        (("projection", "strokes", "taken/file/inside"), "cannot be written to: Not a directory"),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(cswf, tmp_path, monkeypatch, arguments, complaint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").write_text("mine")
    assert complaint in cswf.refusal("new", *arguments)
    assert [path.name for path in tmp_path.rglob("*")] == ["taken", "file"]


@pytest.mark.slow
@pytest.mark.packaging
def test_every_package_and_the_examples_install_pass_their_tests_and_run(cswf, tmp_path):
    assert NAMES.keys() == KINDS.keys()
    folders = [tmp_path / f"cswf-{name}" for name in NAMES.values()]
    examples = [ROOT / "examples" / name for name in EXAMPLES]
    for (kind, name), folder in zip(NAMES.items(), folders, strict=True):
        cswf.output("new", kind, name, folder)
        for command in (("check",), ("format", "--diff")):
            lint = (PYTHON, "-m", "ruff", *command, "--no-cache", "--config", ROOT / "pyproject.toml", ".")
            linted = completed(*lint, cwd=folder)
            assert linted.returncode == 0, linted.stdout + linted.stderr

    site = tmp_path / "site"
    pip = (PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    installed = completed(*pip, "--target", site, *folders, *examples)
    assert installed.returncode == 0, installed.stderr

    environment = {"PYTHONPATH": f"{site}:{ROOT}", "OMP_NUM_THREADS": "1"}
    options = ("-p", "no:cacheprovider", "--import-mode=importlib", "-o", "addopts=-q")
    tests = [*folders, *(example / "tests" for example in examples)]
    tested = completed(PYTHON, "-m", "pytest", *options, *tests, cwd=tmp_path, env=environment, timeout=400)
    assert tested.returncode == 0, tested.stdout
    assert f"{2 * len(NAMES) + sum(EXAMPLES.values())} passed" in tested.stdout

    recipes = [folder / f"{name}.yaml" for name, folder in zip(NAMES.values(), folders, strict=True)]
    checked = completed(PYTHON, "-c", CHECK, *recipes, cwd=tmp_path, env=environment)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.split() == list(NAMES.values())
    assert (tmp_path / "run/samples.npz").exists()
