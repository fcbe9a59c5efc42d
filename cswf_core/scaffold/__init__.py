"""A package begun for a new plugin: one that works as it is, with its test, its recipe and a README.

`templates/` has the files that all packages share, and a folder for each kind of plugin. In them `{{name}}`
stands for the plugin's name, and `{{Class}}`, `{{module}}` and `{{distribution}}` for the names made of it.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from cswf_core.errors import PluginError, RunError, did_you_mean
from cswf_core.plugins import KINDS, Registry

PLACES = {
    "pyproject.toml.template": "pyproject.toml",
    "README.md.template": "README.md",
    "plugin.py.template": "{{module}}.py",
    "recipe.yaml.template": "{{name}}.yaml",
    "test.py.template": "tests/test_{{plain}}.py",
}
"""Each template, and the file that is made of it."""

LONGEST = 30
"""Letters of a name, at most."""


def names_made_of(kind: str, name: str) -> dict[str, str]:
    """Return a plugin's kind and name, and the names made of it, as templates have them in `{{…}}`."""
    plain = name.replace("-", "_")
    return {
        "kind": kind,
        "name": name,
        "plain": plain,
        "module": f"cswf_{plain}",
        "distribution": f"cswf-{name}",
        "Class": "".join(part.capitalize() for part in name.split("-")),
    }


def _filled(text: str, names: Mapping[str, str]) -> str:
    """Return a template's text, or a file's name, with the names in their places."""
    for key, name in names.items():
        text = text.replace("{{" + key + "}}", name)
    return text


def names_of(kind: str, name: str, registry: Registry) -> dict[str, str]:
    """Return the names of a new plugin; raise `PluginError` for an unknown kind, or a name that cannot be."""
    if kind not in KINDS:
        raise PluginError(f"there is no kind of plugin '{kind}'{did_you_mean(kind, KINDS)}")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or len(name) > LONGEST:
        raise PluginError(
            f"'{name}' cannot be the name of a plugin: small letters a to z and digits, a letter first, with "
            f"single hyphens between, {LONGEST} at most{_nearest(name)}"
        )
    names = names_made_of(kind, name)
    class_name = names["Class"]
    advice = f"take another, such as my-{name}"
    if keyword.iskeyword(names["plain"]) or keyword.iskeyword(class_name):
        raise PluginError(f"'{name}' is a word of Python's own; {advice}")
    if class_name in _names_in(kind):
        taken = f"the name {class_name}, which its file has for something else"
        raise PluginError(f"'{name}' would give the class {taken}; {advice}")
    if name in registry.names(kind):
        raise PluginError(f"there is a {kind} '{name}' already, and recipes could not tell the two apart")
    return names


def template_for(names: Mapping[str, str], template: str) -> str:
    """Return a template with names in their places: one that all packages share, or else that of a kind."""
    templates = files("cswf_core.scaffold") / "templates"
    shared = templates / template
    file = shared if shared.is_file() else templates / names["kind"] / template
    return _filled(file.read_text(encoding="utf-8"), names)


def _names_in(kind: str) -> set[str]:
    """Return the names that a kind's file defines or imports besides the plugin's class."""
    tree = ast.parse(template_for(names_made_of(kind, "own"), "plugin.py.template"))
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    return (defined - {"Own"}) | imported


def _nearest(name: str) -> str:
    """Return the name that may have been meant, as the end of a sentence."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    guess = re.sub(r"[^a-z0-9]+", "-", split).strip("-")[: LONGEST - 3].strip("-")
    return f"; did you mean '{'my-' * guess[0].isdigit()}{guess}'?" if guess else ""


def new_package(names: Mapping[str, str], folder: Path) -> list[Path]:
    """Write the package of a plugin into a folder that is not there, or empty; return the files written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        state = "is there already, and not empty" if folder.is_dir() else "is a file"
        raise RunError(f"{folder} {state}: name another folder")
    texts = {
        folder / _filled(place, names): template_for(names, template) for template, place in PLACES.items()
    }
    made: list[Path] = []
    try:
        for path, text in texts.items():
            made += [above for above in reversed(path.parents) if not above.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            made.append(path)
            path.write_text(text, encoding="utf-8")
    except BaseException as error:  # a full disk; or Ctrl-C, at any moment
        for path in reversed(made):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RunError(f"{folder} cannot be written to: {error.strerror or error}") from None
        raise
    return list(texts)
