"""What a shell completes, by click's own way from a line to words."""

from __future__ import annotations

import json
import os
import shutil
import stat

import click
import pytest
from click.shell_completion import get_completion_class

from cswf_core.cli import completion_table
from cswf_core.cli.program import cli
from tests.plugins.test_registry import GOOD
from tests.processes import PYTHON, completed
from tests.project.sources import ROOT

RUN = ("run", "digits")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home in which the table is made once."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        completion_table.read_table(cli)
    return folder


@pytest.fixture
def complete(home, monkeypatch, tmp_path):
    """The words that a line may go on with; the last is what has been written of one."""
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)

    def words(*line: str) -> list[str]:
        shell = get_completion_class("zsh")(cli, {}, "cswf", "_CSWF_COMPLETE")
        found = shell.get_completions(list(line[:-1]), line[-1])
        return [f"file:{word.value}" if word.type == "file" else word.value for word in found]

    return words


def test_commands_and_options_are_completed(complete):
    assert complete("re") == ["resume", "report", "recipes"]
    assert complete("data", "") == ["pack", "check", "info"]
    assert {"--device", "--devices", "--traceback", "--help"} <= set(complete(*RUN, "--"))
    assert complete(*RUN, "--device", "c") == ["cpu", "cuda"]
    assert complete("bench", "--no") == ["--no-naive"]
    assert complete("completion", "") == ["bash", "zsh", "fish"]
    assert complete("eval", "x", "--metric", "k") == ["kid"]
    assert complete("plugins", "check", "hi") == ["high-pass", "histogram"]
    assert complete("new", "co") == ["condition", "coordinates"]


def every_command(group: click.Group):
    """All commands in earnest, and as a shell gets them."""
    plain, completing = click.Context(group), click.Context(group, resilient_parsing=True)
    for name in group.list_commands(plain):
        command, light = group.get_command(plain, name), group.get_command(completing, name)
        if isinstance(command, click.Group):
            yield from every_command(command)
        else:
            yield command, light


def test_every_command_is_completed_with_all_its_parameters(complete):
    for command, light in every_command(cli):
        assert light is not command
        params, declared = command.get_params(click.Context(command)), light.params
        assert [(p.opts, p.secondary_opts, p.nargs) for p in params] == [
            (p.opts, p.secondary_opts, p.nargs) for p in declared
        ]


def test_recipes_are_built_in_names_and_files(complete):
    assert complete("run", "toy-c") == [
        "file:toy-c",
        "toy-conditional-ideal",
        "toy-cswf",
        "toy-cswf-no-amplifier",
    ]
    assert complete("cite", "mine/") == ["file:mine/"]
    assert {"digits", "cifar10-class"} <= set(complete("data", "pack", ""))


@pytest.mark.parametrize("command", ["resume", "report", "sample", "inspect", "inpaint", "update", "eval"])
def test_folders_of_runs_are_left_to_the_shell(complete, command):
    assert complete(command, "runs/") == ["file:runs/"]


def test_plugins_of_a_folder_are_completed_once_it_is_named(complete, tmp_path):
    (tmp_path / "plugins").mkdir()
    line = ("plugins", "check", "--plugins-dir", "plugins", "ax")
    assert complete(*line) == []
    (tmp_path / "plugins/axes.py").write_text(GOOD.replace("{name}", "axis"))
    assert complete(*line) == ["axis"]


def test_the_table_is_made_again_when_packages_have_changed_and_only_then(cswf, home, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    file = completion_table.table_file()
    old = {**json.loads(file.read_text()), "recipes": {"old": ""}}
    file.write_text(json.dumps(old))
    assert completion_table.read_table(cli)["recipes"] == {"old": ""}
    for changed in (json.dumps({**old, "signature": []}), "{"):
        file.write_text(changed)
        assert "digits" in completion_table.read_table(cli)["recipes"]
    file.write_text(json.dumps(old))
    cswf.output("completion", "bash")
    assert "digits" in completion_table.read_table(cli)["recipes"]


def test_a_home_that_cannot_be_written_still_completes(complete, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert complete("run", "digits-") == ["file:digits-", "digits-unconditional"]


def test_completing_imports_no_torch(home):
    code = (
        "import os, sys\nsys.argv = ['cswf']\nfrom cswf_core.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    print([name for name in ('torch', 'yaml', 'numpy', 'attrs') if name in sys.modules])\n"
    )
    line = {"COMP_WORDS": "cswf run digits-", "COMP_CWORD": "2", "_CSWF_COMPLETE": "zsh_complete"}
    done = completed(PYTHON, "-c", code, env={**os.environ, **line, "HOME": str(home)}, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "digits-unconditional" in done.stdout
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize(("shell", "sign"), [("zsh", "#compdef cswf"), ("fish", "--command cswf")])
def test_scripts_are_printed(cswf, home, monkeypatch, shell, sign):
    monkeypatch.setenv("HOME", str(home))
    printed = cswf.output("completion", shell)
    assert sign in printed
    assert f"_CSWF_COMPLETE={shell}_complete" in printed


def test_another_shell_is_refused(cswf):
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in cswf("completion", "tcsh").err


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_takes_the_script(cswf, home, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(home))
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
