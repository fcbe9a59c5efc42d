"""The house: imports go down, nothing is a junk room, and what is written in the docs is so."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from cswf_core import hookspecs
from cswf_core.plugins import KINDS
from cswf_core.recipe import RecipeError, builtin_recipes, load_recipe
from cswf_core.recipe.fields import options
from cswf_core.recipe.recipe import KEYS

ROOT = Path(__file__).resolve().parents[2]

FLOORS = {
    "cswf_core.errors": 0,
    "cswf_core.interfaces": 1,
    "cswf_core.kernels": 1,
    "cswf_core.hookspecs": 1,
    "cswf_core.runs": 1,
    "cswf_core.flow": 2,
    "cswf_core.plugins": 2,
    "cswf_plugins": 2,
    "cswf_core.report": 2,
    "cswf_core.recipe": 3,
    "cswf_core.model": 3,
    "cswf_core.evaluation": 4,
    "cswf_core.bench": 4,
    "cswf_core.session.run": 4,
    "cswf_core.session.update": 4,
    "cswf_core.session.sweep": 4,
    "cswf_core.cli": 4,
    "cswf_core.__main__": 4,
}


def floor(module: str) -> int | None:
    found = [name for name in FLOORS if module == name or module.startswith(name + ".")]
    return FLOORS[max(found, key=len)] if found else None


def imports(path: Path) -> list[str]:
    """Modules of ours that a file imports when it is imported itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if name.startswith(("cswf_core", "cswf_plugins"))]


SOURCES = sorted(p for package in ("cswf_core", "cswf_plugins") for p in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_imports_from_its_own_floor_or_below(path):
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    here = floor(module)
    if module == "cswf_core":
        assert not imports(path)
        return
    assert here is not None, f"{module} has no floor: add it to FLOORS"
    for name in imports(path):
        there = floor(name)
        assert there is not None, f"{module} imports {name}"
        assert there <= here, f"{module} (floor {here}) imports {name} (floor {there})"
        assert module.startswith("cswf_plugins") or not name.startswith("cswf_plugins"), name


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_of_a_size_to_read_and_have_a_purpose(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 320
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, kind: str) -> list[str]:
    """The fenced blocks of a kind in a Markdown file."""
    return re.findall(rf"^```{re.escape(kind)}\n(.*?)^```$", read(name), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("spec", [hookspecs.Registration, hookspecs.Watching])
def test_every_hook_is_documented(spec):
    for name in vars(spec):
        if not name.startswith("_"):
            assert f"| `{name}` |" in read("docs/plugins.md"), name


def test_every_key_plugin_and_parameter_is_documented(registry):
    text = read("docs/recipes.md")
    for key in KEYS:
        assert re.search(rf"^\| `{key}[.`]", text, re.MULTILINE), key
    for plugin in registry.plugins:
        if plugin.owner.distribution == "cswf":
            assert f"`{plugin.owner.name}`" in text, plugin.owner
            for name in options(plugin.factory):
                assert f"`{name}`" in text, (plugin.owner, name)


def test_contracts_name_every_method_of_theirs():
    text = read("docs/plugins.md")
    for hook, contract in KINDS.values():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{hook}`"))
        for name, member in vars(contract).items():
            if callable(member) and not name.startswith("_"):
                assert f"`{name}`" in row, (contract.__name__, name)


def test_the_readme_s_program_runs():
    program = blocks("README.md", "python")[0]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == [f"step {n}" for n in (10, 20, 30, 40, 50)]
    assert lines[-1].startswith("torch.Size([200, 1, 8, 8]) ")


def test_recipes_in_the_docs_are_valid_and_the_faulty_one_gets_the_errors_shown(
    tmp_path, monkeypatch, registry
):
    monkeypatch.chdir(tmp_path)
    for page in ("recipes", "data", "evaluation"):
        for text in blocks(f"docs/{page}.md", "yaml"):
            Path("my.yaml").write_text(text, encoding="utf-8")
            assert load_recipe("my.yaml", registry=registry).name == "my"
    (faulty,), (shown,) = blocks("docs/recipes.md", "yaml faulty"), blocks("docs/recipes.md", "text")
    Path("my.yaml").write_text(faulty, encoding="utf-8")
    with pytest.raises(RecipeError) as error:
        load_recipe("my.yaml", registry=registry)
    assert str(error.value) == shown.strip()


def test_the_plugin_in_the_docs_works_and_its_error_is_the_one_shown(tmp_path, cswf):
    code = blocks("docs/plugins.md", "python")[0]
    (tmp_path / "pairs.py").write_text(code, encoding="utf-8")
    run = ("run", "digits", "projection=pairs", "schedule.steps=2", "--plugins-dir", tmp_path, "--quiet")
    assert cswf(*run, "--out", tmp_path / "a").status == 0
    (tmp_path / "pairs.py").write_text(
        code.replace("(0.5**0.5)", "1").replace("0.5**0.5", "1"), encoding="utf-8"
    )
    done = cswf(*run, "--out", tmp_path / "b")
    assert done.status == 2
    assert done.err == blocks("docs/plugins.md", "text")[0]


def test_the_observer_in_the_docs_works(capfd):
    exec(compile(blocks("docs/plugins.md", "python")[2], "docs/plugins.md", "exec"), {})
    assert [line.split()[0] for line in capfd.readouterr().out.splitlines()] == ["1", "2", "3"]


def test_links_in_the_docs_lead_somewhere():
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("examples/*/*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_recipes_that_commands_in_the_docs_name_exist():
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for name in re.findall(r"\bcswf (?:run|check|show) ([a-z0-9.-]+)", path.read_text(encoding="utf-8")):
            assert name in builtin_recipes() or name.endswith(".yaml"), f"{path.name}: {name}"


def test_the_citation_and_the_version_agree():
    version = re.search(r'^version = "(.+)"$', read("pyproject.toml"), re.MULTILINE).group(1)
    assert yaml.safe_load(read("CITATION.cff"))["version"] == version


def test_the_wheel_carries_recipes_and_both_packages(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for recipe in builtin_recipes():
        assert f"cswf_core/builtin_recipes/{recipe}.yaml" in names
    for source in SOURCES:
        assert str(source.relative_to(ROOT)) in names
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import cswf_core, cswf_core.cli as c; print(cswf_core.__file__); c.cli.main(['recipes', '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": "site"}
    )
    first, _, listing = done.stdout.partition("\n")
    assert first == str(tmp_path / "site/cswf_core/__init__.py"), done.stderr
    assert {row["name"] for row in json.loads(listing)} == set(builtin_recipes())


def test_the_example_package_installs_and_its_test_passes(tmp_path):
    example, site = ROOT / "examples/cswf-pairs", tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(example)], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    test = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(example / "tests")]
    done = subprocess.run(test, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
