"""One-file plugins: several folders, modules beside a plugin, and commands to paste."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cswf_core import build_flow
from cswf_core.errors import PluginError, RunError
from cswf_core.plugins import Registry
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import read_predecessor
from tests.plugins.conftest import GOOD

BESIDE = "\ndef sign():\n    return {number}\n"


def write(folder: Path, file: str, name: str, line: str = "", value: str = "1.0") -> Path:
    """Write a plugin into a folder, with a line above it and a default."""
    folder.mkdir(exist_ok=True)
    code = GOOD.replace("{name}", name).replace("import attrs, torch", f"import attrs, torch\n{line}")
    (folder / file).write_text(code.replace("default=1.0", f"default={value}"))
    return folder


def default_of(registry: Registry, name: str) -> object:
    return registry.find("projection", name).factory().sign


def test_folders_come_from_options_and_from_the_environment_each_once(tmp_path):
    one, two, three = (write(tmp_path / name, f"{name}.py", name) for name in ("one", "two", "three"))
    environment = {"CSWF_PLUGINS_DIR": os.pathsep.join([str(one), str(two), ""])}
    registry = Registry.discover([two, str(three)], environment)
    assert {"one", "two", "three"} <= set(registry.names("projection"))
    assert registry.names("projection").count("two") == 1
    assert "one" in Registry.discover(str(one), {}).names("projection")
    with pytest.raises(PluginError, match="CSWF_PLUGINS_DIR: /nowhere is not a folder"):
        Registry.discover(environment={"CSWF_PLUGINS_DIR": "/nowhere"})


def test_every_command_takes_several_folders(cswf, tmp_path, monkeypatch):
    one, two, three = (write(tmp_path / name, f"{name}.py", name) for name in ("one", "two", "three"))
    monkeypatch.setenv("CSWF_PLUGINS_DIR", str(three))
    folders = ("--plugins-dir", one, "--plugins-dir", two)
    for name in ("one", "two", "three"):
        assert cswf.output("check", "digits", f"projection={name}", *folders)
        assert f'"{name}"' in cswf.output("schema", *folders)
    small = ["projection=two", "schedule.steps=1", "particles.count=5"]
    assert build_flow("digits", small, device="cpu", plugins_dir=[one, two]).run()


@pytest.mark.parametrize(
    "line",
    [
        "import lines",
        "import os, lines as lines",
        "from . import lines",
        "from lines import sign\nclass lines: sign = staticmethod(sign)",
        "from .lines import sign\nclass lines: sign = staticmethod(sign)",
    ],
)
def test_a_module_beside_a_plugin_is_imported_in_both_ways_and_is_no_plugin(tmp_path, line):
    write(tmp_path, "axes.py", "axis", line, "lines.sign()")
    (tmp_path / "lines.py").write_text("from numbers_of_mine import NUMBER\n" + BESIDE.format(number="NUMBER"))
    (tmp_path / "numbers_of_mine.py").write_text("NUMBER = 5.0\n")
    registry = Registry.discover(tmp_path, {})
    assert not registry.broken
    assert default_of(registry, "axis") == 5.0
    assert not list(tmp_path.glob("**/*.pyc"))


def test_modules_and_plugins_of_two_folders_that_have_one_name_are_two(tmp_path):
    for folder, number in (("one", 1), ("two", 2)):
        write(tmp_path / folder, "axes.py", "axis", "import lines", "lines.sign()")
        (tmp_path / folder / "lines.py").write_text(BESIDE.format(number=float(number)))
    registry = Registry.discover([tmp_path / "one", tmp_path / "two"], {})
    assert default_of(registry, "one/axes.py:axis") == 1.0
    assert default_of(registry, "two/axes.py:axis") == 2.0
    with pytest.raises(PluginError, match=r"write 'one/axes.py:axis' or 'two/axes.py:axis'"):
        registry.find("projection", "axis")


def test_a_file_without_hooks_is_broken_unless_a_plugin_imports_it(tmp_path):
    write(tmp_path, "axes.py", "axis", "import lines")
    (tmp_path / "lines.py").write_text("x = __name__\n")
    (tmp_path / "alone.py").write_text("import circle\n")
    (tmp_path / "circle.py").write_text("import alone\n")
    registry = Registry.discover(tmp_path, {})
    assert sorted(broken.owner.name for broken in registry.broken) == ["alone", "circle"]
    assert all("it implements no hook" in broken.reason for broken in registry.broken)


def test_a_module_beside_that_fails_is_told_as_the_reason(tmp_path):
    write(tmp_path, "axes.py", "axis", "import lines")
    (tmp_path / "lines.py").write_text("1 / 0\n")
    (broken,) = Registry.discover(tmp_path, {}).broken
    assert (broken.owner.name, broken.reason) == ("axes", "ZeroDivisionError: division by zero")


def test_a_file_may_be_called_as_a_package_and_does_not_take_its_place(tmp_path):
    write(tmp_path, "torch.py", "axis", "import json\njson.dumps(1)\ntorch.ones(1)")
    (tmp_path / "json.py").write_text("x = 1\n")
    registry = Registry.discover(tmp_path, {})
    assert "axis" in registry.names("projection")
    assert [broken.owner.name for broken in registry.broken] == ["json"]


def test_a_file_is_read_again_when_plugins_are_looked_for_again(tmp_path):
    write(tmp_path, "axes.py", "axis", "import lines", "lines.sign()")
    for number in (1.0, 2.0):
        (tmp_path / "lines.py").write_text(BESIDE.format(number=number))
        assert default_of(Registry.discover(tmp_path, {}), "axis") == number


def test_commands_to_go_on_with_repeat_the_folders(cswf, tmp_path):
    stop = "\n@hookimpl\ndef after_step():\n    raise KeyboardInterrupt\n"
    one, two = write(tmp_path / "one", "axes.py", "axis"), write(tmp_path / "t wo", "more.py", "more")
    (one / "axes.py").write_text((one / "axes.py").read_text() + stop)
    folders, out = ("--plugins-dir", one, "--plugins-dir", two), tmp_path / "out"
    done = cswf("run", "digits", "projection=axis", *folders, "--out", out, "--quiet", "--device", "cpu")
    assert done.status == 130
    pasted = f"`cswf resume {out} --plugins-dir {one} --plugins-dir '{two}'`"
    assert f"{pasted} goes on from" in done.err
    assert pasted in cswf.refusal("update", out, "--data", "digits", *folders)
    with pytest.raises(RunError, match=f"`cswf resume {out}` brings it to its end"):
        read_predecessor(RunFolder(out))
    said = cswf.refusal("eval", out, "--samples", "offline", "--plugins-dir", one)
    assert f"`cswf sample {out} --plugins-dir {one}` draws" in said
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    swept = cswf.output("show", "ablation-particles", *folders)
    assert f"`cswf sweep ablation-particles --plugins-dir {one} --plugins-dir '{two}'`" in swept
