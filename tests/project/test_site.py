"""The documentation as a site: built with warnings as errors, and complete in itself."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.processes import PYTHON, completed
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

    def build(folder: Path) -> None:
        built = completed(PYTHON, "-m", "mkdocs", "build", "--strict", "--site-dir", folder, cwd=ROOT)
        assert built.returncode == 0, built.stdout + built.stderr

    return made_once("site", build)


def test_the_site_builds_without_a_warning_and_asks_no_other_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text("utf-8")
        assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//[^"]*"', text) == [], page
        assert "<!-- generated:" not in text, page


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on PATH")
def test_search_works_in_a_folder_opened_from_disk(site, tmp_path):
    address = f"{(site / 'index.html').as_uri()}?q=amplifier"
    shown = completed(CHROMIUM, *FLAGS.split(), f"--user-data-dir={tmp_path}", address)
    assert re.search(r">\d+ matching documents<", shown.stdout), shown.stderr


@pytest.mark.parametrize(
    ("fault", "files"),
    [
        ("a link to a page that is not there", {"index.md": "[a](b.md)"}),
        ("a link to an anchor that is not there", {"index.md": "[a](#nowhere)"}),
        ("a page that the navigation lacks", {"index.md": "text", "other.md": "text"}),
    ],
)
def test_a_fault_of_a_page_is_an_error(fault, files, tmp_path):
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    (tmp_path / "docs").mkdir()
    for name, text in files.items():
        (tmp_path / "docs" / name).write_text(text)
    places = {"docs_dir": str(tmp_path / "docs"), "site_dir": str(tmp_path / "site")}
    config = load_config(
        str(ROOT / "mkdocs.yml"), **places, nav=["index.md"], hooks=[], plugins=[], extra_css=[], strict=True
    )
    with pytest.raises(Abort):
        build(config)
