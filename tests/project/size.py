"""Count lines, files, classes and module constants, package by package; `make size`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
SOURCE = ("cswf_core", "cswf_plugins")
OTHERS = ("reference", "examples", "tests")
CAPITALS = re.compile("_?[A-Z][A-Z0-9_]*")


@attrs.frozen
class Size:
    """Of the Python files of a folder; templates and pages are not counted."""

    lines: int = 0
    files: int = 0
    classes: int = 0
    constants: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(*(a + b for a, b in zip(attrs.astuple(self), attrs.astuple(other), strict=True)))


BEFORE = {
    "source": Size(46804, 338, 469, 682),
    "reference": Size(1001, 11, 1, 30),
    "examples": Size(686, 12, 7, 12),
    "tests": Size(36202, 233, 269, 390),
}
"""At f21eee1, where the issue began that asked for half the weight."""


def size_of_file(path: Path) -> Size:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    classes = sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
    return Size(len(text.splitlines()), 1, classes, sum(constants_of(statement) for statement in tree.body))


def constants_of(statement: ast.stmt) -> int:
    """How many names in capitals a statement of a module assigns, one by one."""
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    else:
        return 0
    return sum(isinstance(target, ast.Name) and CAPITALS.fullmatch(target.id) is not None for target in targets)


def size_of(folder: Path) -> Size:
    """Of all Python files below a folder."""
    return sum((size_of_file(path) for path in folder.rglob("*.py")), Size())


def sizes_of(root: Path) -> dict[str, Size]:
    """Of each package of the source, of the source together, and of what stands beside it."""
    sizes = {}
    for top in SOURCE:
        for path in sorted((root / top).iterdir()):
            if path.is_dir():
                sizes[f"{top}/{path.name}"] = size_of(path)
        sizes[f"{top}/*.py"] = sum(map(size_of_file, (root / top).glob("*.py")), Size())
    sizes["source"] = sum(sizes.values(), Size())
    for top in OTHERS:
        sizes[top] = size_of(root / top)
    return {name: size for name, size in sizes.items() if size.files}


def main() -> None:
    """Print the table, with the state before beside the totals."""
    print(f"{'':<24}{'lines':>8}{'files':>8}{'classes':>8}{'constants':>11}")
    for name, size in sizes_of(ROOT).items():
        print(row(name, size))
        if name in BEFORE:
            print(row("  at f21eee1", BEFORE[name]))


def row(name: str, size: Size) -> str:
    return f"{name:<24}{size.lines:>8,}{size.files:>8}{size.classes:>8}{size.constants:>11}"


if __name__ == "__main__":
    main()
