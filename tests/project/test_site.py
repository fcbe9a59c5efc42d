"""The documentation as a site: built with warnings as errors, complete, and asking no other host."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import click
import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError

from cswf_core import hookspecs, interfaces
from cswf_core.fields import options
from cswf_core.plugins import KINDS
from cswf_core.recipe import builtin_recipes
from cswf_core.recipe.sections import KEYS, SECTIONS, EvaluateSection, OnlineSection, ReuseSection
from reference import site as hooks
from tests.processes import completed
from tests.project.pages import commands
from tests.project.sources import ROOT

pytestmark = pytest.mark.packaging

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=5000 --dump-dom"
)


@pytest.fixture(scope="module")
def site(made_once) -> Path:
    """The site as `make docs` builds it."""
    return made_once(
        "site", lambda to: build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(to)))
    )


@pytest.fixture(scope="module")
def page(site):
    """Returns a page's HTML by its name, `reference/hooks`."""
    return lambda name: (site / f"{name}.html").read_text("utf-8")


def test_the_site_builds_without_a_warning_and_asks_no_other_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for path in pages:
        text = path.read_text("utf-8")
        assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//[^"]*"', text) == [], path
        assert "<!-- generated:" not in text, path


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on PATH")
def test_search_works_in_a_folder_opened_from_disk(site, tmp_path):
    address = f"{(site / 'index.html').as_uri()}?q=amplifier"
    shown = completed(CHROMIUM, *FLAGS.split(), f"--user-data-dir={tmp_path}", address)
    assert re.search(r">\d+ matching documents<", shown.stdout), shown.stderr


def test_hooks_and_all_that_plugins_derive_from_or_import_is_documented(page):
    """A name without a docstring, or a help, has no place on a page."""
    for spec in (hookspecs.Registration, hookspecs.Watching):
        for name in vars(spec):
            assert name.startswith("_") or f'id="{spec.__module__}.{spec.__name__}.{name}"' in page(
                "reference/hooks"
            )
    contracts = {kind: page(f"reference/contracts/{kind}") for kind in (*KINDS, "shared")}
    for kind, (_, contract) in KINDS.items():
        for name in (*vars(contract), *getattr(contract, "__annotations__", {})):
            place = f'id="{contract.__module__}.{contract.__name__}.{name}"'
            assert name.startswith("_") or place in contracts[kind], name
    for name in interfaces.__all__:
        assert re.search(rf'id="cswf_core\.[\w.]+\.{name}"', "".join(contracts.values())), name


def test_every_command_and_option_is_documented(page):
    sections = dict(
        re.findall(r'<h\d id="(cswf[\w-]*)"(.*?)(?=<h\d|\Z)', page("reference/commands"), re.DOTALL)
    )
    for path, command in commands():
        assert command.help, path
        for parameter in command.params:
            shown = parameter.make_metavar(click.Context(command)).strip("[].")
            if isinstance(parameter, click.Option):
                shown = parameter.opts[0]
                assert parameter.help, (path, shown)
            assert shown in sections[path.replace(" ", "-")], (path, shown)


def test_every_key_of_recipes_is_documented(page):
    text = page("reference/recipe-keys")
    for key in KEYS:
        assert re.search(rf"<td><code>{key}[.<]", text), key
    sections = {**SECTIONS, "evaluate": EvaluateSection, "online": OnlineSection, "projection": ReuseSection}
    for section, cls in sections.items():
        for name in options(cls):
            assert f"<td><code>{section}.{name}</code></td>" in text, name


@pytest.mark.parametrize("kind", KINDS)
def test_every_plugin_and_parameter_is_documented(kind, registry, page):
    text = page(f"reference/plugins/{kind}")
    sections = dict(re.findall(rf'<h2 id="{kind}-([\w-]+)">(.*?)(?=<h2|\Z)', text, re.DOTALL))
    for plugin in registry.plugins:
        if plugin.owner.kind == kind and plugin.owner.distribution == "cswf":
            own = sections[plugin.owner.name]
            for subject in ("What it is", "Cost", "When not to use it"):
                assert f"<strong>{subject}:</strong>" in own, (plugin.owner, subject)
            for name in options(plugin.factory):
                assert f"<td><code>{name}</code></td>" in own, (plugin.owner, name)


def test_recipes_sources_and_templates_are_shown(page):
    assert all(
        f"<td><code>{name}</code></td>" in page("reference/built-in-recipes") for name in builtin_recipes()
    )
    text = re.sub(r"<[^>]+>", "", page("examples"))
    assert "class Brightness(ConditionEncoder):" in text
    assert "class StraightLines(CDFEstimator):" in text
    assert "{{" not in text


def test_what_is_unknown_or_lacks_words_is_refused():
    with pytest.raises(PluginError, match="nothing makes 'contract'; known: keys, "):
        hooks.made("contract", "sampler")
    with pytest.raises(PluginError, match=r"^parameter 'bins' has no documentation: write a docstring"):
        hooks.required(" ", "parameter 'bins'")


def test_names_lead_to_their_explanation(page):
    assert 'href="shared.html#cswf_core.errors.DataError"><code>DataError</code>' in page(
        "reference/contracts/dataset"
    )


def test_links_out_of_the_docs_are_names_on_the_site(page):
    assert "<code>cswf-strokes/</code> is a whole package" in page("examples")
    assert '<a href="index.html#more-pictures">README</a>' in page("results")
    assert "](../README.md" in (ROOT / "docs/results.md").read_text("utf-8")
