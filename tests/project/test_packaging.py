"""README's program, and the wheel in an interpreter of its own."""

from __future__ import annotations

import json
import zipfile

import pytest

from cswf_core.recipe import builtin_recipes
from tests.processes import PYTHON, completed
from tests.project.sources import ROOT, SOURCES, blocks

pytestmark = pytest.mark.packaging


def test_the_readme_s_program_runs(capsys):
    exec(compile(blocks("README.md", "python")[0], "README.md", "exec"), {"__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == [f"step {n}" for n in (10, 20, 30, 40, 50)]
    assert lines[-1].startswith("torch.Size([200, 1, 8, 8]) ")


def test_the_wheel_carries_recipes_templates_and_both_packages(tmp_path):
    built = completed(
        PYTHON, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path, cwd=ROOT
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for recipe in builtin_recipes():
        assert f"cswf_core/builtin_recipes/{recipe}.yaml" in names
    for source in (*SOURCES, *(ROOT / "cswf_core/scaffold/templates").rglob("*.template")):
        assert str(source.relative_to(ROOT)) in names
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import cswf_core; from cswf_core.cli.program import cli; print(cswf_core.__file__); "
    code += "cli.main(['recipes', '--json'])"
    done = completed(PYTHON, "-c", code, cwd=tmp_path, env={"PYTHONPATH": "site"})
    first, _, listing = done.stdout.partition("\n")
    assert first == str(tmp_path / "site/cswf_core/__init__.py"), done.stderr
    assert {row["name"] for row in json.loads(listing)} == set(builtin_recipes())
