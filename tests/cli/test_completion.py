"""What a shell completes, by click's own way from a line to words."""

from __future__ import annotations

import json
import os
import shutil
import stat

import click
import pytest
from click.shell_completion import get_completion_class

from cswf_core.cli import cli, completion_table
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
        return [word.value for word in shell.get_completions(list(line[:-1]), line[-1])]

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


def test_a_table_of_another_person_is_not_believed(complete, monkeypatch):
    real = completion_table.read_table(cli)
    file = completion_table.table_file()
    file.write_text(json.dumps(real | {"recipes": {"forged": ""}}))
    assert complete("run", "for") == ["forged"]
    owner = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    assert complete("run", "for") == []
    monkeypatch.undo()
    assert file.stat().st_uid == owner


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


def test_recipes_are_built_in_names_and_files(complete, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("my.yaml", "my.txt", "mine/other.yml"):
        (tmp_path / name).touch()
    assert complete("run", "toy-c") == ["toy-conditional-ideal", "toy-cswf", "toy-cswf-no-amplifier"]
    assert {"my.yaml", "mine/", "mnist-class"} <= set(complete("check", "m"))
    assert "my.txt" not in complete("check", "m")
    assert complete("cite", "mine/") == ["mine/other.yml"]
    assert "digits" in complete("run", "")
    assert "mine/" not in complete("run", "")
    assert {"digits", "cifar10-class"} <= set(complete("data", "pack", ""))


def test_keys_of_recipes_are_completed_part_by_part(complete):
    assert complete(*RUN, "se") == ["seed="]
    assert sorted(complete(*RUN, "p")) == ["particles.", "projection.", "projection="]
    assert complete(*RUN, "particles.c") == ["particles.clip=", "particles.count="]
    assert "schedule.entries=" in complete(*RUN, "schedule.")
    assert complete(*RUN, "seed=1", "model.s") == ["model.save="]
    assert "projection=" in complete("bench", "digits", "proj")


@pytest.mark.parametrize(
    ("key", "written", "words"),
    [
        ("projection", "lo", ["locally-connected", "low-rank"]),
        ("projection.of", "unif", ["uniform"]),
        ("model.save", "", ["true", "false"]),
        ("particles.precision", "float", ["float32", "float64"]),
        ("nothing", "", []),
    ],
)
def test_values_are_completed_behind_a_key_also_as_bash_cuts_words(complete, key, written, words):
    assert complete(*RUN, f"{key}={written}") == [f"{key}={word}" for word in words]
    if written:
        assert complete(*RUN, key, "=", written) == words
    elif words:
        assert complete(*RUN, key, "=") == words


def test_folders_of_runs_are_completed(complete, tmp_path):
    for name in ("runs/a", "runs/b/model", "runs/deep/er", "pictures"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "runs/a/run.json").touch()
    (tmp_path / "runs/b/model/model.json").touch()
    assert complete("resume", "r") == ["runs/"]
    for command in ("resume", "report", "sample", "inspect", "inpaint", "update"):
        assert complete(command, "runs/") == ["runs/a", "runs/b", "runs/deep/"], command
    assert complete("resume", "nowhere/") == []


def test_plugins_of_a_folder_are_completed_once_it_is_named(complete, tmp_path):
    (tmp_path / "plugins").mkdir()
    line = ("run", "digits", "--plugins-dir", "plugins", "projection=ax")
    assert complete(*line) == []
    (tmp_path / "plugins/axes.py").write_text(GOOD.replace("{name}", "axis"))
    assert complete(*line) == ["projection=axis"]


def test_the_table_is_made_again_when_a_file_has_changed_and_only_then(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    file = completion_table.table_file()
    content = json.loads(file.read_text())
    assert str(ROOT / "recipes/digits.yaml") in content["files"]
    file.write_text(json.dumps({**content, "recipes": {"old": ""}}))
    assert completion_table.read_table(cli)["recipes"] == {"old": ""}
    times = {**content["files"], str(ROOT / "recipes/digits.yaml"): 1}
    file.write_text(json.dumps({**content, "recipes": {"old": ""}, "files": times}))
    assert "digits" in completion_table.read_table(cli)["recipes"]
    file.write_text("{")
    assert "digits" in completion_table.read_table(cli)["recipes"]


def test_a_home_that_cannot_be_written_still_completes(complete, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert complete("run", "digits-") == ["digits-unconditional"]


def test_completing_imports_no_torch(home):
    code = (
        "import os, sys\nsys.argv = ['cswf']\nfrom cswf_core.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    print([name for name in ('torch', 'yaml', 'numpy', 'attrs') if name in sys.modules])\n"
    )
    line = {"COMP_WORDS": "cswf run digits projection=l", "COMP_CWORD": "3", "_CSWF_COMPLETE": "zsh_complete"}
    done = completed(PYTHON, "-c", code, env={**os.environ, **line, "HOME": str(home)}, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "projection=low-rank" in done.stdout
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
def test_bash_takes_the_script_and_leaves_no_space_behind_a_key(cswf, home, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(home))
    program = tmp_path / "cswf"
    program.write_text(f"#!{PYTHON}\nfrom cswf_core.cli import main\nmain()\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "script").write_text(cswf.output("completion", "bash"))
    commands = (
        "source script; compopt() { echo $@; }\n"  # which bash has only while it completes
        "COMP_WORDS=(cswf run digits see) COMP_CWORD=3; _cswf_completion_together cswf; echo ${COMPREPLY[@]}\n"
        "complete -p cswf\n"
    )
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = completed("bash", "-c", commands, cwd=tmp_path, env={**os.environ, **path})
    assert done.stdout.splitlines() == [
        "-o nospace",
        "seed=",
        "complete -o nosort -F _cswf_completion_together cswf",
    ]
