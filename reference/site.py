"""MkDocs' hooks: pages get what is generated for them, and blocks of code lose words that only tests read."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # MkDocs loads this file by its path

from mkdocs.exceptions import PluginError
from mkdocs.utils import get_relative_url

from reference.markdown import UndocumentedError
from reference.pages import expanded

FENCE = re.compile(r"^```(\w+) ([^\n]+)$", re.MULTILINE)
"""The first line of a block of code with words behind its language, which tests/project/pages.py explains."""

WORKER = re.compile(r"https://unpkg\.com/iframe-worker/shim")
"""A script of another host that Material's offline plugin asks for; docs/theme/worker.js takes its place."""


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Return a page's HTML with scripts of this site only."""
    return WORKER.sub(get_relative_url("theme/worker.js", page.url), output)


def on_post_template(output_content: str, *, template_name: str, **_: Any) -> str:
    """Return 404.html, whose addresses begin at the root, with scripts of this site only."""
    return WORKER.sub("/theme/worker.js", output_content) if template_name == "404.html" else output_content


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page's text as MkDocs is to render it."""
    try:
        return FENCE.sub(_fence, expanded(markdown, page.file.src_uri))
    except (UndocumentedError, KeyError) as error:
        raise PluginError(str(error)) from None


def _fence(line: re.Match[str]) -> str:
    """Return the first line of a block with its language and title; the other words are for tests."""
    title = re.search(r'title="[^"]*"', line[2])
    return f"```{line[1]} {title[0]}" if title else f"```{line[1]}"
