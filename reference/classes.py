"""Classes and names of a module as Markdown: docstrings, signatures, and the texts below attributes."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator, Sequence
from functools import cache

from reference.markdown import code, heading, prose, required, section, table

PROPERTIES = {"property", "cached_property"}
"""Decorators that make an attribute of a method."""


@cache
def source(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def public_classes(module: str) -> list[str]:
    """Return the names of the classes that a module defines, in the order of its text."""
    tree = source(module)
    return [n.name for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]


def public_names(module: str) -> list[str]:
    """Return the names of the types and numbers that a module defines, in the order of its text."""
    return [name for name, _, _ in _assigned(source(module).body)]


def public_methods(module: str, name: str) -> list[str]:
    """Return the names of the methods that a class's description has."""
    return [method.name for method in _methods(_class(module, name))]


def _class(module: str, name: str) -> ast.ClassDef:
    tree = source(module)
    return next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)


def describe_class(module: str, name: str, level: int = 2) -> str:
    """Return a class as Markdown: what it is, its attributes, and every method with its signature."""
    node = _class(module, name)
    bases = [ast.unparse(base) for base in node.bases]
    return section(
        heading(level, f"`{name}`", name),
        code_block(f"class {name}({', '.join(bases)})") if bases not in ([], ["abc.ABC"], ["Protocol"]) else "",
        prose(required(ast.get_docstring(node), f"{module}.{name}")),
        table(["attribute", "type", "default", "meaning"], _attributes(node, f"{module}.{name}")),
        *(_method(method, node.name, f"{module}.{name}", level + 1) for method in _methods(node)),
    )


def describe_names(module: str) -> str:
    """Return the types and numbers that a module defines beside its classes, as a table."""
    tree = source(module)
    rows = [
        (code(name), code(value), prose(required(text, f"{module}.{name}")))
        for name, value, text in _assigned(tree.body)
    ]
    return table(["name", "value", "meaning"], rows)


def describe_function(module: str, name: str, level: int = 2) -> str:
    """Return a function as Markdown: its signature and its docstring."""
    tree = source(module)
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    return section(
        heading(level, f"`{name}`", name),
        code_block(signature(node)),
        prose(required(ast.get_docstring(node), f"{module}.{name}")),
    )


def _assigned(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str, str | None]]:
    """Yield (name, value, the text below it) of the public names that a module's body assigns."""
    for node, text in _with_texts(body):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and not target.id.startswith("_") and not _is_type_variable(node):
            yield target.id, "" if node.value is None else ast.unparse(node.value), text


def _is_type_variable(node: ast.stmt) -> bool:
    value = getattr(node, "value", None)
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeVar"


def _with_texts(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.Assign | ast.AnnAssign, str | None]]:
    """Yield every assignment of a body with the text that stands below it, if there is one."""
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield node, _text(below)


def _text(node: ast.stmt | None) -> str | None:
    """Return the text that a statement is, if it is nothing else."""
    value = node.value if isinstance(node, ast.Expr) else None
    literal = value.value if isinstance(value, ast.Constant) else None
    return inspect.cleandoc(literal) if isinstance(literal, str) else None


def _attributes(node: ast.ClassDef, owner: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield (name, type, default, meaning) of a class's public attributes, its properties included."""
    for assigned, text in _with_texts(node.body):
        target = assigned.targets[0] if isinstance(assigned, ast.Assign) else assigned.target
        name = ast.unparse(target)
        if not name.startswith("_"):
            default, help_text = _default(assigned.value)
            type_text = ast.unparse(assigned.annotation) if isinstance(assigned, ast.AnnAssign) else ""
            meaning = required(text or help_text, f"{owner}.{name}")
            yield code(name), code(type_text), code(default), prose(meaning)
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and _is_property(method) and not method.name.startswith("_"):
            meaning = required(ast.get_docstring(method), f"{owner}.{method.name}")
            returned = ast.unparse(method.returns) if method.returns else ""
            abstract = " (to be written)" if _is_abstract(method) else ""
            yield code(method.name), code(returned), "", prose(meaning) + abstract


def _default(value: ast.expr | None) -> tuple[str, str | None]:
    """Return the default that an attribute's value gives it, and the help that a `parameter` has."""
    if not isinstance(value, ast.Call):
        return ast.unparse(value) if value is not None else "", None
    called = ast.unparse(value.func)
    if called not in ("attrs.field", "parameter"):
        return ast.unparse(value), None
    options = {option.arg: ast.unparse(option.value) for option in value.keywords}
    default = options.get("default", f"{options['factory']}()" if "factory" in options else "")
    help_text = ast.literal_eval(value.args[0]) if called == "parameter" else None
    return default, help_text


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Yield the methods that people call or write, and `__init__` and `__call__`."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not _is_property(method) and _is_public(method.name):
            yield method


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in ("__init__", "__call__")


def _method(method: ast.FunctionDef, cls: str, owner: str, level: int) -> str:
    documented = ast.get_docstring(method)
    if method.name == "__init__" and not documented:
        documented = "The class's own text says what it takes."
    must = "*To be written:* it has no default.\n\n" if _is_abstract(method) else ""
    return section(
        heading(level, f"`{method.name}`", f"{cls}.{method.name}"),
        code_block(signature(method)),
        must + prose(required(documented, f"{owner}.{method.name}")),
    )


def signature(function: ast.FunctionDef) -> str:
    """Return a function's head with its types, on several lines if it is long."""
    kinds = [name for name in _decorators(function) if name in ("classmethod", "staticmethod")]
    returned = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    head = f"def {function.name}({ast.unparse(function.args)}){returned}"
    if len(head) > 88:
        arguments = ",\n    ".join(_arguments(function.args))
        head = f"def {function.name}(\n    {arguments},\n){returned}"
    return "".join(f"@{kind}\n" for kind in kinds) + head


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    """Yield every argument as it is written, `*` among them where only names are allowed behind it."""
    plain = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    yield from (_argument(a, d) for a, d in zip(plain, defaults, strict=True))
    if arguments.vararg:
        yield f"*{_argument(arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    yield from (_argument(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    if arguments.kwarg:
        yield f"**{_argument(arguments.kwarg, None)}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    typed = f"{argument.arg}: {ast.unparse(argument.annotation)}" if argument.annotation else argument.arg
    equals = " = " if argument.annotation else "="
    return typed if default is None else f"{typed}{equals}{ast.unparse(default)}"


def code_block(text: str) -> str:
    """Return Python as a block of code."""
    return f"```python\n{text}\n```"


def _decorators(function: ast.FunctionDef) -> list[str]:
    return [ast.unparse(decorator) for decorator in function.decorator_list]


def _is_property(function: ast.FunctionDef) -> bool:
    return not PROPERTIES.isdisjoint(_decorators(function))


def _is_abstract(function: ast.FunctionDef) -> bool:
    return "abc.abstractmethod" in _decorators(function)
