"""What the documentation says is so: its links, its figures and the sentences that it quotes."""

from __future__ import annotations

import ast
import json
import re

import pytest
import yaml

from cswf_core.recipe import builtin_recipes
from tests.project.pages import DOCS, PAGES, blocks_of, matches
from tests.project.sources import ROOT, SOURCES, blocks, read, tree

MISTAKES = {
    "theta / torch.linalg.vector_norm(theta, dim=1, keepdim=True)": "theta",
    "math.pi * turn": "math.pi * torch.rand(count, 8, 1, 1)",
}
"""What the tutorial has its reader change → into what, in the order of the errors that it shows."""


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_in_the_tutorial_s_plugin_get_the_errors_shown(number, tmp_path, cswf):
    code, *_ = [b.text for b in blocks_of(DOCS / "plugins.md") if b.words.get("title") == "plugins/strokes.py"]
    right, wrong = list(MISTAKES.items())[number]
    assert code.count(right) == 1
    assert wrong in read("docs/plugins.md")
    (tmp_path / "strokes.py").write_text(code.replace(right, wrong), encoding="utf-8")
    run = ("run", "digits", "projection=strokes", "schedule.steps=2", "--plugins-dir", tmp_path, "--quiet")
    done = cswf(*run, "--out", tmp_path / "run")
    assert done.status == 2
    assert matches(blocks("docs/plugins.md", "text")[number], done.err)


def test_the_tutorial_ends_with_the_plugin_of_the_example_package():
    *_, code = [b.text for b in blocks_of(DOCS / "plugins.md") if b.words.get("title") == "plugins/strokes.py"]
    package = read("examples/cswf-strokes/cswf_strokes/__init__.py")
    classes = [
        next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
        for text in (code, package)
    ]
    assert ast.unparse(classes[0]) == ast.unparse(classes[1])


def test_the_notebook_s_cells_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads(read("examples/flow_by_hand.ipynb"))["cells"]
    programs = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(programs) >= 4
    variables: dict[str, object] = {"__name__": "__main__"}
    for number, program in enumerate(programs):
        exec(compile(program, f"cell {number}", "exec"), variables)
    assert (tmp_path / "strokes.png").exists()


def test_links_in_the_docs_lead_somewhere():
    for path in [*ROOT.glob("*.md"), *PAGES, *ROOT.glob("examples/*/*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_recipes_that_commands_in_the_docs_name_exist():
    for path in [ROOT / "README.md", *PAGES]:
        for name in re.findall(r"\bcswf (?:run|check|show) ([a-z0-9./:-]+)", path.read_text(encoding="utf-8")):
            package, _, bare = name.rpartition(":")
            brought = package and list((ROOT / "examples" / package).rglob(f"{bare}.yaml"))
            assert brought or name in builtin_recipes() or name.endswith(".yaml"), f"{path.name}: {name}"


def test_figures_on_the_home_page_are_those_of_the_readme():
    readme = read("README.md").replace("](docs/", "](")
    rows = [line for line in read("docs/index.md").splitlines() if line.startswith("|") and "cswf " in line]
    assert len(rows) >= 5
    assert [row for row in rows if row not in readme.splitlines()] == []


def sentences() -> set[str]:
    """Every text in the sources but for docstrings, with a space where a value is put in."""
    texts = set()
    for path in SOURCES:
        nodes = list(ast.walk(tree(path)))
        alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
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
