"""What the documentation says is so: its recipes, programs, links and lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from cswf_core import hookspecs
from cswf_core.plugins import KINDS
from cswf_core.recipe import RecipeError, builtin_recipes, load_recipe
from cswf_core.recipe.fields import options
from cswf_core.recipe.recipe import KEYS
from tests.project.sources import ROOT, blocks, read


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
