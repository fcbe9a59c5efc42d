"""What a shell completes, by click's own way from a line to words."""

from __future__ import annotations

import os
import shutil
import stat

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


def test_commands_options_and_plugins_are_completed(complete):
    assert complete("re") == ["resume", "report", "recipes"]
    assert complete("data", "") == ["pack", "check", "info"]
    assert {"--device", "--devices", "--traceback", "--help"} <= set(complete(*RUN, "--"))
    assert complete(*RUN, "--device", "c") == ["cpu", "cuda"]
    assert complete("bench", "--no") == ["--no-naive"]
    assert complete("completion", "") == ["bash", "zsh", "fish"]
    assert complete("eval", "x", "--metric", "k") == ["kid"]
    assert complete("plugins", "hi") == complete("plugins", "check", "hi") == ["high-pass", "histogram"]
    assert complete("new", "co") == ["condition", "coordinates"]


def test_recipes_are_built_in_names_and_files(complete):
    ideal = ["toy-conditional-ideal", "toy-cswf", "toy-cswf-no-amplifier"]
    assert complete("run", "toy-c") == ["file:toy-c", *ideal]
    assert complete("cite", "mine/") == ["file:mine/"]
    assert {"digits", "cifar10-class"} <= set(complete("data", "pack", ""))
    assert complete("report", "runs/") == ["file:runs/"]


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


@pytest.mark.parametrize(("shell", "sign"), [("zsh", "#compdef cswf"), ("fish", "--command cswf")])
def test_scripts_are_printed(cswf, shell, sign):
    printed = cswf.output("completion", shell)
    assert sign in printed
    assert f"_CSWF_COMPLETE={shell}_complete" in printed


def test_another_shell_is_refused(cswf):
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in cswf("completion", "tcsh").err


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_takes_the_script(cswf, tmp_path):
    program = tmp_path / "cswf"
    program.write_text(f"#!{PYTHON}\nfrom cswf_core.cli import main\nmain()\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "script").write_text(cswf.output("completion", "bash"))
    commands = (
        "source script; compopt() { echo $@; }\n"  # which bash has only while it completes
        "COMP_WORDS=(cswf run digits-) COMP_CWORD=2; _cswf_completion cswf; echo ${COMPREPLY[@]}\n"
        "complete -p cswf\n"
    )
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = completed("bash", "-c", commands, cwd=tmp_path, env={**os.environ, **path})
    assert done.stdout.splitlines() == [
        "-o default",  # files, where no word begins so
        "digits-unconditional",
        "complete -o nosort -F _cswf_completion cswf",
    ]
