"""The generated reference has everything that a plugin or a recipe can use, and nothing without words."""

from __future__ import annotations

import inspect
import re
import sys

import click
import pytest

from cswf_core import hookspecs, interfaces
from cswf_core.fields import options
from cswf_core.plugins import KINDS
from cswf_core.recipe.sections import KEYS, SECTIONS, EvaluateSection, OnlineSection, ReuseSection
from reference import classes
from reference.commands import commands
from reference.contracts import explained
from reference.markdown import UndocumentedError, linked
from reference.pages import MARKER, expanded, generators
from tests.project.pages import DOCS, PAGES
from tests.project.sources import read


def page(name: str) -> str:
    """A page of the site, with what is generated for it."""
    return expanded(read(f"docs/{name}"), name)


@pytest.mark.parametrize("spec", [hookspecs.Registration, hookspecs.Watching])
def test_every_hook_is_documented(spec):
    text = page("reference/hooks.md")
    for name in vars(spec):
        if not name.startswith("_"):
            (row,) = re.findall(rf"^\| `{name}` \| (.+) \| (.+) \|$", text, re.MULTILINE)
            assert row[0] == ", ".join(
                f"`{n}`" for n in inspect.signature(getattr(spec, name)).parameters if n != "self"
            )
            assert len(row[1]) > 20, name


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_and_flag_of_a_contract_is_documented(kind):
    text, contract = page(f"reference/contracts/{kind}.md"), KINDS[kind][1]
    (own,) = re.findall(rf"^## `{contract.__name__}` .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    for name, member in vars(contract).items():
        if callable(member) and not name.startswith("_"):
            assert f"### `{name}` " in own, name
            assert f"def {name}(" in own, name
    for name in getattr(contract, "__annotations__", {}):
        assert f"| `{name}` | " in own, name


def test_everything_that_plugins_import_is_explained():
    places = dict(explained())
    assert set(interfaces.__all__) <= places.keys()


def test_every_command_and_option_is_documented():
    text = page("reference/commands.md")
    sections = dict(re.findall(r"^## `(.+?)` .*?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    for path, command in commands():
        for option in command.params:
            if isinstance(option, click.Option):
                assert re.search(rf"^\| `[^`]*{option.opts[0]}\b[^`]*` \| \S", sections[path], re.MULTILINE), (
                    option
                )
            else:
                assert option.make_metavar(click.Context(command)).strip("[].") in sections[path], (
                    path,
                    option,
                )


def test_every_key_of_recipes_is_documented():
    text = page("reference/recipe-keys.md")
    for key in KEYS:
        assert re.search(rf"^\| `{key}[.`].* \| [^| ][^|]+ \|$", text, re.MULTILINE), key
    sections = {**SECTIONS, "evaluate": EvaluateSection, "online": OnlineSection, "projection": ReuseSection}
    for section, cls in sections.items():
        for name in options(cls):
            assert f"| `{section}.{name}` |" in text, name


@pytest.mark.parametrize("kind", KINDS)
def test_every_plugin_and_parameter_is_documented(kind, registry):
    text = page(f"reference/plugins/{kind}.md")
    sections = dict(re.findall(r"^## `(.+?)` .*?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    for plugin in registry.plugins:
        if plugin.owner.kind == kind and plugin.owner.distribution == "cswf":
            own = sections[plugin.owner.name]
            assert all(
                subject in own for subject in ("**What it is:**", "**Cost:**", "**When not to use it:**")
            )
            for name in options(plugin.factory):
                assert f"| `{name}` | " in own, (plugin.owner, name)


def test_everything_generated_is_on_one_page():
    wanted = [marker for path in PAGES for marker in MARKER.findall(path.read_text(encoding="utf-8"))]
    assert sorted(wanted) == sorted(generators())


def test_examples_show_the_source_and_the_template_filled_in():
    text = page("examples.md")
    assert "class Brightness(ConditionEncoder):" in text
    assert "class StraightLines(CDFEstimator):" in text
    assert "{{" not in text


def test_a_page_that_wants_something_unknown_is_refused():
    with pytest.raises(KeyError, match="nothing makes 'contract sampler'; known: "):
        expanded("<!-- generated: contract sampler -->", "reference/hooks.md")


@pytest.mark.parametrize(
    ("lacking", "code"),
    [
        ("Thing", "class Thing:\n    size: int = 1\n    'Its size.'"),
        ("Thing.size", "class Thing:\n    'A thing.'\n    size: int = 1"),
        ("Thing.size", "class Thing:\n    'A thing.'\n    size: int = parameter('')"),
        ("Thing.grow", "class Thing:\n    'A thing.'\n    def grow(self) -> None: ..."),
        ("Thing.area", "class Thing:\n    'A thing.'\n    @property\n    def area(self) -> int: ..."),
        ("Thing", "class Thing:\n    '   '"),
    ],
)
def test_what_lacks_words_is_refused(lacking, code, tmp_path, monkeypatch):
    (tmp_path / "undocumented.py").write_text(f"from cswf_core.interfaces import parameter\n{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "undocumented", raising=False)
    classes.source.cache_clear()
    with pytest.raises(UndocumentedError, match=rf"^undocumented\.{lacking} has no documentation"):
        classes.describe_class("undocumented", "Thing")


def test_names_lead_to_their_explanation():
    places = {"Draw": "shared.md#draw"}
    assert linked("a `Draw`", places) == "a [`Draw`](shared.md#draw)"
    assert linked("```python\n`Draw`\n```", places) == "```python\n`Draw`\n```"
    assert linked("## `Draw` and [`Draw`](x.md)", places) == "## `Draw` and [`Draw`](x.md)"
    assert "[`DataError`](shared.md#errors)" in page("reference/contracts/dataset.md")


def test_links_out_of_the_docs_are_names_on_the_site():
    assert "](../" not in page("examples.md")
    assert "`cswf-strokes/` is a whole package" in page("examples.md")
    assert "[README](index.md#more-pictures)" in page("results.md")
    assert DOCS.joinpath("results.md").read_text(encoding="utf-8").count("](../README.md") > 0
