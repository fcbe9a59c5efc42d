"""The repository's own files, read as text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for package in ("cswf_core", "cswf_plugins") for path in (ROOT / package).rglob("*.py"))


def read(name: str) -> str:
    """The text of a file of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file, parsed once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


def blocks(name: str, kind: str) -> list[str]:
    """The fenced blocks of a kind in a Markdown file."""
    return re.findall(rf"^```{re.escape(kind)}\n(.*?)^```$", read(name), re.MULTILINE | re.DOTALL)


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a file gives to a variable, attribute, parameter, function or class, and its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
