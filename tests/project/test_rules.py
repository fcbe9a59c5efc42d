"""Plain statements and short functions everywhere, and one word for one thing, as CONTRIBUTING.md says."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.sources import ROOT, SOURCES, names, tree

ENGINE = ("flow", "model", "online", "kernels")
"""Packages of `cswf_core` whose names are words of the glossary; the other rules hold everywhere."""

FUNCTION_LINES = 60
FUNCTION_PARAMETERS = 7

RETIRED = {
    "Home": "Placement",
    "habits": "numerics",
    "shake": "add_noise",
    "doubt": "recheck",
    "lent": "borrow",
    "obey": "receive_commands",
    "attend": "begin_commands",
    "settle": "a plain word for what happens",
    "refuse_idle_half": "the name of what is checked",
}
"""Metaphors that name nothing in the engine → what to write."""

FILE_KEYS = {("habits", "state.py")}
"""Retired words that stay, as they are keys of files: here of a checkpoint."""


def sources(package: str) -> list[Path]:
    """Return the files of a package of `cswf_core`."""
    return sorted((ROOT / "cswf_core" / package).rglob("*.py"))


def is_packed(node: ast.AST) -> bool:
    """Say whether a statement assigns several values to as many targets, and does more than reorder them."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple | ast.List):
        return False
    values = sorted(map(ast.unparse, node.value.elts))
    several = [target for target in node.targets if isinstance(target, ast.Tuple | ast.List)]
    return any(sorted(map(ast.unparse, target.elts)) != values for target in several)


def packed(tree: ast.AST) -> list[tuple[str, int]]:
    """Return each packed assignment in a file: its function, or `module`, and its line."""

    def owner(node: ast.AST) -> str:
        around = [each.name for each in functions(tree) if node in ast.walk(each)]
        return around[-1] if around else "module"  # an inner function comes after the one around it

    return [(owner(node), node.lineno) for node in ast.walk(tree) if is_packed(node)]


def walruses(tree: ast.AST) -> list[int]:
    """Return the lines of the conditions of comprehensions that also assign."""
    conditions = [each for node in ast.walk(tree) if isinstance(node, ast.comprehension) for each in node.ifs]
    return [node.lineno for each in conditions for node in ast.walk(each) if isinstance(node, ast.NamedExpr)]


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return all functions and methods of a file, an outer one before those inside it."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Say whether a function is a Triton kernel, whose parameters are pointers and sizes."""
    return any(ast.unparse(decorator).startswith("triton.jit") for decorator in function.decorator_list)


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many lines a function has, with its docstring and without its decorators."""
    return function.end_lineno - function.lineno + 1


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many parameters a function has besides `self` or `cls`."""
    own = function.args
    listed = [*own.posonlyargs, *own.args, *own.kwonlyargs, *filter(None, (own.vararg, own.kwarg))]
    return sum(each.arg not in ("self", "cls") for each in listed)


def too_large(tree: ast.AST) -> Iterator[tuple[str, int, str]]:
    """Yield the functions of a file with too many lines or parameters: name, line, and how many."""
    for function in functions(tree):
        if length(function) > FUNCTION_LINES:
            yield function.name, function.lineno, f"{length(function)} lines"
        if parameters(function) > FUNCTION_PARAMETERS and not is_kernel(function):
            yield function.name, function.lineno, f"{parameters(function)} parameters"


def class_names(trees: dict[str, ast.AST]) -> dict[str, list[str]]:
    """Return where each class is defined, file:line, by its name."""
    places = defaultdict(list)
    for file, syntax in trees.items():
        for node in ast.walk(syntax):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{file}:{node.lineno}")
    return places


def parsed(paths: list[Path]) -> dict[str, ast.AST]:
    return {str(path.relative_to(ROOT)): tree(path) for path in paths}


def test_a_statement_does_one_thing():
    places = [f"{file}:{line} {name}" for file, tree in parsed(SOURCES).items() for name, line in packed(tree)]
    assert not places, "\n".join(["packed assignments:", *places])


def test_a_condition_of_a_comprehension_assigns_nothing():
    places = [f"{file}:{line}" for file, tree in parsed(SOURCES).items() for line in walruses(tree)]
    assert not places, "\n".join(places)


def test_a_function_is_of_a_size_to_read():
    large = [(file, *fault) for file, tree in parsed(SOURCES).items() for fault in too_large(tree)]
    assert not large, "\n".join(f"{file}:{line} {name} has {many}" for file, name, line, many in large)


def test_a_class_name_stands_for_one_class():
    twice = {name: places for name, places in class_names(parsed(SOURCES)).items() if len(places) > 1}
    assert not twice, "\n".join(f"{name}: {', '.join(places)}" for name, places in twice.items())


@pytest.mark.parametrize("package", ENGINE)
def test_names_are_words_of_the_glossary(package):
    used = [(file, *named) for file, tree in parsed(sources(package)).items() for named in names(tree)]
    retired = [
        f"{file}:{line} {name}: write {RETIRED[name.lstrip('_')]}"
        for file, name, line in used
        if name.lstrip("_") in RETIRED and (name, Path(file).name) not in FILE_KEYS
    ]
    assert not retired, "\n".join(retired)


def test_faults_are_recognised():
    assert packed(ast.parse("def f(x):\n    def g(y):\n        a, (b, c) = y, x")) == [("g", 3)]
    assert packed(ast.parse("a, b = b, a\na, b = f(x)\na = x, y\nfor a, b in x, y: pass")) == []
    assert walruses(ast.parse("[y for x in xs if (y := f(x))]")) == [1]
    assert class_names({"a.py": ast.parse("class A: pass")}) == {"A": ["a.py:1"]}
    long = "def f():\n" + "    pass\n" * FUNCTION_LINES
    assert list(too_large(ast.parse(long))) == [("f", 1, f"{FUNCTION_LINES + 1} lines")]
    many = "def f(self, a, /, b, c, *d, e, f, g, **h): pass"
    assert list(too_large(ast.parse(many))) == [("f", 1, "8 parameters")]
    assert list(too_large(ast.parse(f"@triton.jit\n{many}"))) == []
