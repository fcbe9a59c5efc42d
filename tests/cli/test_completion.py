"""What a shell completes, by click's own way from a line to words."""

from __future__ import annotations

import os

import pytest
from click.shell_completion import get_completion_class

from cswf_core.cli.program import cli
from tests.plugins.test_registry import GOOD
from tests.processes import PYTHON, completed
from tests.project.sources import ROOT

RUN = ("run", "digits")


@pytest.fixture
def complete(monkeypatch, tmp_path):
    """The words that a line may go on with; the last is what has been written of one."""
    monkeypatch.chdir(tmp_path)

    def words(*line: str) -> list[str]:
        shell = get_completion_class("zsh")(cli, {}, "cswf", "_CSWF_COMPLETE")
        found = shell.get_completions(list(line[:-1]), line[-1])
        return [f"file:{word.value}" if word.type == "file" else word.value for word in found]

    return words


def test_commands_options_and_plugins_are_completed(complete, cswf):
    assert complete("re") == ["resume", "report", "recipes"]
    assert complete("data", "") == ["pack", "check", "info"]
    assert {"--device", "--devices", "--traceback", "--help"} <= set(complete(*RUN, "--"))
    assert complete(*RUN, "--device", "c") == ["cpu", "cuda"]
    assert complete("bench", "--no") == ["--no-naive"]
    assert complete("completion", "") == ["bash", "zsh", "fish"]
    for shell in ("bash", "zsh", "fish"):
        assert f"_CSWF_COMPLETE={shell}_complete" in cswf.output("completion", shell)
    assert complete("eval", "x", "--metric", "k") == ["kid"]
    assert complete("plugins", "hi") == complete("plugins", "check", "hi") == ["high-pass", "histogram"]
    assert complete("new", "co") == ["condition", "coordinates"]


def test_recipes_are_built_in_names_and_files(complete):
    ideal = ["toy-conditional-ideal", "toy-cswf", "toy-cswf-no-amplifier"]
    assert complete("run", "toy-c") == ["file:toy-c", *ideal]
    assert complete("cite", "mine/") == ["file:mine/"]
    assert {"digits", "cifar10-class"} <= set(complete("data", "pack", ""))
    for command in ("resume", "report", "sample", "inspect", "inpaint", "update", "eval"):
        assert complete(command, "runs/") == ["file:runs/"], command


def test_plugins_of_a_folder_are_completed_once_it_is_named(complete, tmp_path):
    (tmp_path / "plugins").mkdir()
    line = ("plugins", "check", "--plugins-dir", "plugins", "ax")
    assert complete(*line) == []
    (tmp_path / "plugins/axes.py").write_text(GOOD.replace("{name}", "axis"))
    assert complete(*line) == ["axis"]


def test_completing_imports_no_torch():
    code = (
        "import os, sys\nsys.argv = ['cswf']\nfrom cswf_core.cli import main\n"
        "try:\n    main()\nfinally:\n    print('torch._C' in sys.modules)\n"
    )
    line = {"COMP_WORDS": "cswf run digits-", "COMP_CWORD": "2", "_CSWF_COMPLETE": "zsh_complete"}
    done = completed(PYTHON, "-c", code, env={**os.environ, **line}, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "digits-unconditional" in done.stdout
    assert done.stdout.endswith("False\n")
