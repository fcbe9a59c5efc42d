"""What the documentation shows is run: programs, commands and recipes, page by page, each in a new folder."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import click
import pytest

from cswf_core.recipe import RecipeError, load_recipe
from tests.project.pages import DOCS, PAGES, Block, blocks_of, commands, commands_of, matches
from tests.project.sources import ROOT

RUN = [page for page in PAGES if any(block.decided and "skip" not in block.words for block in blocks_of(page))]


def name(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_whether_it_is_run(page):
    for block in blocks_of(page):
        assert block.language not in ("python", "console", "yaml") or block.decided, f"{page}:{block.line}"
        assert block.words.get("skip") != "", f"{page}:{block.line} does not say why it is skipped"


@pytest.mark.pages
@pytest.mark.parametrize("page", RUN, ids=name)
def test_a_page_s_blocks_do_what_it_says(page, tmp_path, monkeypatch, cswf, registry, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    variables: dict[str, object] = {"__name__": "__main__"}
    blocks = blocks_of(page)
    for block, behind in zip(blocks, [*blocks[1:], None], strict=True):
        place = f"{page}:{block.line}"
        if "title" in block.words:
            Path(block.words["title"]).parent.mkdir(parents=True, exist_ok=True)
            Path(block.words["title"]).write_text(block.text, encoding="utf-8")
        if block.language == "yaml":
            check_recipe(block, registry, place)
        if block.is_run and block.language == "console":
            call(block, cswf, place, caplog)
        if block.is_run and block.language == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block.text, place, "exec"), variables)
            if behind is not None and "output" in behind.words:
                assert matches(behind.text, printed.getvalue()), f"{place} printed\n{printed.getvalue()}"


def check_recipe(block: Block, registry, place: str) -> None:
    """Load a recipe, or a part of one on top of another, as its block says."""
    file = Path(block.words.get("title") or "block.yaml")
    file.write_text(
        ("extends: online-digits\n" if "part" in block.words else "") + block.text, encoding="utf-8"
    )
    if "faulty" in block.words:
        with pytest.raises(RecipeError):
            load_recipe(file, registry=registry)
    else:
        load_recipe(file, registry=registry)


def call(block: Block, cswf, place: str, caplog) -> None:
    """Call the commands of a block, and compare what they print, warnings too, with what it shows."""
    shown = commands_of(block)
    for command in shown:
        program, *arguments = command.words
        assert program == "cswf", f"{place}: only cswf is run, not {program}"
        extra = shlex.split(block.words["run"]) if arguments[0] == "run" else []
        caplog.clear()
        done = cswf(*arguments, *extra)
        warnings = "".join(f"{each.getMessage()}\n" for each in caplog.records if each.levelname == "WARNING")
        expected = int(block.words.get("status") or 0) if command is shown[-1] else 0
        assert done.status == expected, f"{place}: {command.line}\n{done.err}"
        if command.printed.strip():
            orders = (done.out + done.err, done.err + done.out, warnings + done.out + done.err)
            assert any(matches(command.printed, text) for text in orders), f"{place} printed\n{orders[0]}"


def test_commands_in_the_docs_have_the_options_that_they_are_given():
    known = {
        path: {o for p in command.params for o in (*p.opts, *p.secondary_opts)} for path, command in commands()
    }
    groups = {path for path, command in commands() if isinstance(command, click.Group)}
    for page in [ROOT / "README.md", *PAGES]:
        for block in blocks_of(page):
            for command in commands_of(block) if block.language == "console" else []:
                line = re.sub(r"\s# .*", "", command.line)
                for words in re.findall(r"\bcswf(?:_core)? ([a-z][^|&]*)", line):
                    path = "cswf"
                    for word in words.split():
                        names_a_plugin = path == "cswf plugins" and f"{path} {word}" not in known
                        if path not in groups or names_a_plugin:
                            break
                        path = f"{path} {word}"
                    assert path in known, f"{page}:{block.line}: {command.line}"
                    for option in re.findall(r"(?<!\S)--[a-z-]+", words):
                        assert option in known[path] | {"--help"}, f"{page}:{block.line}: {path} {option}"


def test_what_a_page_shows_is_compared_line_by_line():
    assert matches("a … c\n", "a b c\n")
    assert matches("first\n…\nlast\n", "first\n1\n2\nlast")
    assert matches("first\n…\nlast\n", "first\nlast")
    assert not matches("a … c\n", "a b\n c\n")
    assert not matches("first\n", "first\nsecond\n")
