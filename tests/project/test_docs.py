"""What the documentation says is so: its links, its figures and the sentences that it quotes."""

from __future__ import annotations

import ast
import re

import yaml

from cswf_core.recipe import builtin_recipes
from tests.project.pages import DOCS, PAGES, blocks_of
from tests.project.sources import ROOT, SOURCES, blocks, read


def test_the_plugin_in_the_docs_gets_the_error_shown_if_directions_are_too_long(tmp_path, cswf):
    (code,) = [b.text for b in blocks_of(DOCS / "plugins.md") if b.words.get("title") == "plugins/pairs.py"]
    (tmp_path / "pairs.py").write_text(
        code.replace("(0.5**0.5)", "1").replace("0.5**0.5", "1"), encoding="utf-8"
    )
    run = ("run", "digits", "projection=pairs", "schedule.steps=2", "--plugins-dir", tmp_path, "--quiet")
    done = cswf(*run, "--out", tmp_path / "run")
    assert done.status == 2
    assert done.err == blocks("docs/plugins.md", "text")[0]


def test_links_in_the_docs_lead_somewhere():
    for path in [*ROOT.glob("*.md"), *PAGES, *ROOT.glob("examples/*/*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_recipes_that_commands_in_the_docs_name_exist():
    for path in [ROOT / "README.md", *PAGES]:
        for name in re.findall(r"\bcswf (?:run|check|show) ([a-z0-9.-]+)", path.read_text(encoding="utf-8")):
            assert name in builtin_recipes() or name.endswith(".yaml"), f"{path.name}: {name}"


def test_figures_on_the_home_page_are_those_of_the_readme():
    readme = read("README.md").replace("](docs/", "](")
    rows = [line for line in read("docs/index.md").splitlines() if line.startswith("|") and "cswf " in line]
    assert len(rows) >= 5
    assert [row for row in rows if row not in readme.splitlines()] == []


def sentences() -> set[str]:
    """Every text in the sources but for docstrings, with a space where a value is put in."""
    texts = set()
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = [n.value if isinstance(n, ast.Constant) else " " for n in node.values]
                texts.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
                texts.add(node.value)
    return texts


def test_errors_on_the_troubleshooting_page_are_those_of_the_program():
    quoted = re.findall(r"^### `(.+)`$", read("docs/troubleshooting.md"), re.MULTILINE)
    assert len(quoted) >= 25
    texts = sentences()
    for sentence in quoted:
        fixed = re.compile(".*?".join(map(re.escape, sentence.split("…"))), re.DOTALL)
        assert any(fixed.search(text) for text in texts), sentence


def test_the_citation_and_the_version_agree():
    version = re.search(r'^version = "(.+)"$', read("pyproject.toml"), re.MULTILINE).group(1)
    assert yaml.safe_load(read("CITATION.cff"))["version"] == version
