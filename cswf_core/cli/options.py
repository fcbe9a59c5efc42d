"""What several commands have: options, types of these, and words that a shell completes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click import argument, option
from click.shell_completion import CompletionItem

from cswf_core.cli import deferred
from cswf_core.errors import excerpt, printable
from cswf_core.files import bytes_of
from cswf_core.numbers import LARGEST, number_hint, whole_number

LEAST_MEMORY = 256 * 10**6
"""Bytes that a limit must leave."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PATH = click.Path(path_type=Path)

flag = partial(option, is_flag=True)
"""Declares an option without a value."""

TRACEBACK = "CSWF_TRACEBACK"
"""Environment variable that, with any value but 0, does what --traceback does."""


def _show_tracebacks(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Have tracebacks shown, by this process and those it starts."""
    del ctx, param
    if value:
        os.environ[TRACEBACK] = "1"


class Command(click.Command):
    """A command with `--traceback`, as `cswf` itself and all of its commands are."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params.append(
            click.Option(
                ["--traceback"],
                is_flag=True,
                expose_value=False,
                callback=_show_tracebacks,
                help="Show the whole traceback of an error before its sentence.",
            )
        )


class CommandGroup(Command, click.Group):
    """A group of such commands, listed in the order a newcomer meets them."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands as they were declared."""
        del ctx
        return list(self.commands)


Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def one_of(*words: str) -> Complete:
    """Return what completes a word by some that are known."""
    return lambda _ctx, _param, begun: [CompletionItem(word) for word in words if word.startswith(begun)]


def _completing(words: Callable[[Any], Mapping[str, str]], *, files: bool = False) -> Complete:
    """Return what completes a word by those of a registry of plugins, each with its help; or by files.

    Whatever is wrong, a person who presses TAB did not ask: the commands themselves say it.
    """

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del param
        deferred.defer()
        completions = [CompletionItem(incomplete, type="file")] if files else []
        try:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                from cswf_core.plugins import Registry

                known = words(Registry.discover(ctx.params.get("plugins_dir") or ()))
        except Exception:
            return completions
        helps = {
            printable(word): printable(text) for word, text in known.items() if word.startswith(incomplete)
        }
        return completions + [CompletionItem(word, help=text or None) for word, text in helps.items()]

    return complete


def plugins_of(*kinds: str, files: bool = False) -> Complete:
    """Return what completes the names of plugins of some kinds, or of all if none is named."""

    def words(registry: Any) -> dict[str, str]:
        return {
            registry.name_of(plugin.owner): plugin.summary
            for plugin in registry.plugins
            if not kinds or plugin.owner.kind in kinds
        }

    return _completing(words, files=files)


def _recipes(registry: Any) -> dict[str, str]:
    from cswf_core.recipe import known_recipes

    return dict.fromkeys(known_recipes(registry), "")


complete_recipes = _completing(_recipes, files=True)
recipe = argument("recipe", shell_complete=complete_recipes)
overrides = argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")


class WholeNumber(click.IntRange):
    """The type of an option that takes a whole number, from a least one to what 64 bits hold."""

    def __init__(self, least: int, most: int | None = None) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; one that is too large is told without all its digits."""
        if isinstance(value, str) and value.strip().isdecimal() and whole_number(value) is None:
            self.fail(f"{excerpt(value)} is too large: 64 bits hold {LARGEST:,} at most", param, ctx)
        if isinstance(value, str) and whole_number(value) is None and number_hint(value, whole=True):
            self.fail(f"'{value}' is not a whole number{number_hint(value, whole=True)}", param, ctx)
        written: Any = excerpt(value) if isinstance(value, str) else value
        return super().convert(written, param, ctx)


plugins_dir = option(
    "--plugins-dir",
    type=PATH,
    multiple=True,
    help="Also load the one-file plugins in this folder; may be given several times.",
)
json = flag("--json", "as_json", help="Print JSON.")
device = option(
    "--device",
    default="auto",
    show_default=True,
    metavar="auto|cpu|cuda|cuda:N",
    shell_complete=one_of("auto", "cpu", "cuda"),
    help="Where to compute.",
)
devices = option(
    "--devices",
    metavar="N|all",
    help="Share the work between N devices, a process each: GPUs, or cores of the CPU.",
)


def command(text: str) -> str:
    """Return a command that a person may paste, in backticks, with the plugin folders that this call has."""
    from cswf_core.plugins import as_options  # needs PyTorch

    context = click.get_current_context(silent=True)
    folders = () if context is None else context.params.get("plugins_dir", ())
    return f"`{text}{as_options(folders)}`"


def size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the bytes of a size."""
    number = None if value is None else bytes_of(value)
    if value is not None and not number:
        raise click.BadParameter(f"'{value}' is no size; write 500MB, 1.5GB or 2GiB", ctx, param)
    return number


def _limit_memory(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Plan with this much memory for as long as the command runs."""
    if value is None:
        return
    limit = bytes_of(value)
    if limit is None:
        raise click.BadParameter(
            f"'{excerpt(value)}' is no size of memory; write 500MB, 1.5GB or 2GiB", ctx, param
        )
    if limit < LEAST_MEMORY:
        meant = next((v for v in (f"{value}MB", f"{value}GB") if (bytes_of(v) or 0) >= LEAST_MEMORY), "")
        unit = meant and f"; without a unit it is in bytes: did you mean {meant}?"
        least = f"PyTorch alone takes {LEAST_MEMORY // 10**6} MB"
        raise click.BadParameter(f"{excerpt(value)} is too little: {least}{unit}", ctx, param)
    from cswf_core.kernels.memory import memory_limited  # with PyTorch, which `cswf doctor` may find missing

    ctx.with_resource(memory_limited(limit))


memory_limit = option(
    "--memory-limit",
    metavar="SIZE",
    expose_value=False,
    callback=_limit_memory,
    help="Plan with so much memory, such as 1GB; data that take more are streamed.  [default: all there is]",
)


def _accept_changed_plugins(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Take changed plugins for as long as the command runs; imported only then, as it needs PyTorch."""
    del param
    if value:
        ctx.with_resource(import_module("cswf_core.recipe.provenance").accepting_changed_plugins())


accept_changed_plugins = flag(
    "--accept-changed-plugins",
    expose_value=False,
    callback=_accept_changed_plugins,
    help="Go on although the code of a plugin has changed since.",
)
quiet = flag("--quiet", help="Print nothing but errors.")


def together(*chosen: Decorator) -> Decorator:
    """Return several options as one decorator, in the order in which help shows them."""
    return lambda command: reduce(lambda decorated, decorate: decorate(decorated), reversed(chosen), command)


recipe_with_overrides = together(recipe, overrides)
listing = together(json, plugins_dir)
computing = together(device, memory_limit, quiet)
sharing = together(device, devices, memory_limit, quiet)
going_on = together(accept_changed_plugins, plugins_dir)
seed = option("--seed", type=WholeNumber(0), default=0, show_default=True, help="Another one, other samples.")
replace = flag("--force", help="Replace files that are there.")


def out(text: str) -> Decorator:
    """Return the option `--out`, a path."""
    return option("--out", type=PATH, help=text)
