"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from cswf_core.errors import excerpt
from cswf_core.files import bytes_of
from cswf_core.numbers import LARGEST, whole_number

LEAST_MEMORY = 256 * 10**6
"""Bytes that a limit must leave."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class WholeNumber(click.IntRange):
    """The type of an option that takes a whole number, from a least one to what 64 bits hold."""

    def __init__(self, least: int) -> None:
        super().__init__(min=least)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; one that is too large is told without all its digits."""
        if isinstance(value, str) and value.strip().isdecimal() and whole_number(value) is None:
            self.fail(f"{excerpt(value)} is too large: 64 bits hold {LARGEST:,} at most", param, ctx)
        written: Any = excerpt(value) if isinstance(value, str) else value
        return super().convert(written, param, ctx)


plugins_dir = click.option(
    "--plugins-dir",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Also load the one-file plugins in this folder; may be given several times.",
)
json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
device = click.option(
    "--device", default="auto", show_default=True, metavar="auto|cpu|cuda|cuda:N", help="Where to compute."
)
devices = click.option(
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


def _limit_memory(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Plan with so much memory for as long as the command runs."""
    if value is None:
        return
    limit = bytes_of(value)
    if limit is None:
        raise click.BadParameter(
            f"'{excerpt(value)}' is no size of memory; write 500MB, 1.5GB or 2GiB", ctx, param
        )
    if limit < LEAST_MEMORY:
        raise click.BadParameter(
            f"{excerpt(value)} is too little: PyTorch alone takes {LEAST_MEMORY // 10**6} MB", ctx, param
        )
    from cswf_core.kernels.memory import memory_limited  # with PyTorch, which `cswf doctor` may find missing

    ctx.with_resource(memory_limited(limit))


memory_limit = click.option(
    "--memory-limit",
    metavar="SIZE",
    expose_value=False,
    callback=_limit_memory,
    help="Plan with so much memory, such as 1GB; data that take more are streamed.  [default: all there is]",
)


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the bytes of a size."""
    size = None if value is None else bytes_of(value)
    if value is not None and not size:
        raise click.BadParameter(f"'{value}' is no size; write 500MB, 1.5GB or 2GiB", ctx, param)
    return size


limit = click.option(
    "--limit",
    metavar="SIZE",
    callback=_size,
    help="Memory that the images of a file or folder may take as they are, such as 20GB.  "
    "[default: a quarter of this machine's]",
)


def _accepting(option: str, where: str, text: str) -> Decorator:
    """Return an option that takes what is otherwise refused, for as long as the command runs.

    `where` names the context that does it, `module:function`, which is imported only then: it needs PyTorch.
    """

    def accept(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        del param
        if value:
            module, _, function = where.partition(":")
            ctx.with_resource(getattr(import_module(module), function)())

    return click.option(option, is_flag=True, expose_value=False, callback=accept, help=text)


accept_changed_plugins = _accepting(
    "--accept-changed-plugins",
    "cswf_core.recipe.provenance:accepting_changed_plugins",
    "Go on although the code of a plugin has changed since.",
)
accept_unverified = _accepting(
    "--accept-unverified",
    "cswf_core.runs.checkpoints:accepting_unverified",
    "Take checkpoints although their manifest, which has their checksums, is missing or damaged.",
)
quiet = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
seed = click.option(
    "--seed", type=WholeNumber(0), default=0, show_default=True, help="Another one, other samples."
)
evaluation_seed = click.option(
    "--seed",
    type=WholeNumber(0),
    help="Of the evaluation's own choices: subsets, directions, classifiers.  "
    "[default: evaluate.seed of the run's recipe, else 0]",
)
against = click.option(
    "--against",
    multiple=True,
    metavar="DATA[:SPLIT]",
    help="Real samples: a data set (both its splits, or :train or :test), a folder of pictures, an .npz file; "
    "may be given several times.  [default: the data of the run]",
)
count = click.option("--count", type=WholeNumber(1), help="Score so many at most.  [default: 50,000]")
weights = click.option("--weights", type=click.Path(path_type=Path), help="The feature network's file.")
no_download = click.option(
    "--no-download", is_flag=True, help="Never fetch the feature network from the internet."
)
precision = click.option(
    "--precision",
    type=click.Choice(["float32", "fast"]),
    help="Of the feature network; fast is float16 on CUDA, and float32 elsewhere.  "
    "[default: that of the run's recipe, else float32]",
)


def metrics(default: str) -> Decorator:
    """Return the option `--metric`; `default` says what holds without it."""
    return click.option(
        "--metric",
        "metrics",
        multiple=True,
        metavar="NAME",
        help="A metric, as in a recipe: fid, or '{use: fid, mode: clean}'; may be given several times.  "
        f"[default: {default}]",
    )


replace = click.option("--force", is_flag=True, help="Replace files that are there.")


def out(text: str) -> Decorator:
    """Return the option `--out`, a path."""
    return click.option("--out", type=click.Path(path_type=Path), help=text)
