"""The rooms stand as CONTRIBUTING.md draws them: imports go down, none in a circle; no file is a junk room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from tests.project.sources import ROOT, SOURCES, blocks, names, tree


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path): path for path in SOURCES}


def written_imports(parsed: ast.AST) -> Iterator[str]:
    """Every module that a file imports, wherever the import stands: at its head, in a function, for types."""
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "imports name their module in full"
            assert not node.level, "imports name their module in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


@cache
def imports() -> dict[str, set[str]]:
    """The modules of ours that each module imports, now or later."""
    return {
        name: {other for other in written_imports(tree(path)) if other in MODULES}
        for name, path in MODULES.items()
    }


def drawing() -> list[str]:
    """The rooms from the top down, as in CONTRIBUTING.md: on a line, those to the left stand above."""
    (text,) = blocks("CONTRIBUTING.md", "text")
    return [room for line in text.splitlines() for room in line.split("  ")[0].split(" · ")]


def room(name: str) -> str:
    """The room of a module: a package or module directly in `cswf_core`, or the built-in plugins as a whole."""
    package, _, inside = name.partition(".")
    return package if package == "cswf_plugins" else inside.partition(".")[0]


ENTRANCES = {"", "__main__"}
"""`cswf_core/__init__.py`, which knows by name where things are, and `python -m cswf_core`: above all rooms."""


def test_the_drawing_has_every_room_once():
    drawn, rooms = drawing(), {room(name) for name in MODULES} - ENTRANCES
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == rooms


def test_no_import_goes_up():
    heights = {name: -depth for depth, name in enumerate(drawing())} | dict.fromkeys(ENTRANCES, 1)
    arrows = {(name, other) for name, others in imports().items() for other in others}
    placed = [arrow for arrow in arrows if {room(name) for name in arrow} <= heights.keys()]
    up = {(name, other) for name, other in placed if heights[room(other)] > heights[room(name)]}
    assert not up


def test_nothing_but_the_built_in_plugins_imports_them():
    users = {
        name for name, others in imports().items() if any(room(other) == "cswf_plugins" for other in others)
    }
    assert {name for name in users if room(name) != "cswf_plugins"} == set()


def test_no_imports_go_in_a_circle():
    TopologicalSorter(imports()).prepare()  # raises CycleError, which names the modules


def test_imports_are_read_wherever_they_stand():
    code = """
from cswf_core.flow import step
def later():
    from cswf_core.recipe import load_recipe
    importlib.import_module("cswf_core.model")
if TYPE_CHECKING:
    import cswf_core.session.run
"""
    found = {"cswf_core.flow.step", "cswf_core.recipe", "cswf_core.model", "cswf_core.session.run"}
    assert set(written_imports(ast.parse(code))) == found


def test_files_have_a_purpose():
    junk = {"utils", "util", "helpers", "common", "misc"}
    assert [name for name in MODULES if name.rpartition(".")[2] in junk] == []


DOORS = {"printing.py", "screen.py", "doctor.py", "commands.py"}
"""Files that print: two of them for all others, one in colours, one a script for a shell."""


def test_what_is_printed_goes_through_one_door():
    calls = {"print", "click.echo", "click.secho", "Console", "sys.stdout.write", "sys.stderr.write"}
    printing = {
        path.name
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in calls
    }
    assert printing <= DOORS


VAGUE = {"what", "that", "those", "found", "kept", "shown", "given", "asked"}


def test_a_name_says_what_it_names():
    used = {(name, path.name) for path in SOURCES for name, _ in names(tree(path))}
    vague = {(name, file) for name, file in used if name.lstrip("_") in VAGUE}
    assert vague == {("shown", "condition.py"), ("shown", "colorize.py")}  # a method of a contract
