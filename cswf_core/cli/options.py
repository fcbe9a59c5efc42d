"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

plugins_dir = click.option(
    "--plugins-dir", type=click.Path(path_type=Path), help="Also load the one-file plugins in this folder."
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
quiet = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Another one, other samples."
)
replace = click.option("--force", is_flag=True, help="Replace files that are there.")


def out(text: str) -> Decorator:
    """Return the option `--out`, a path."""
    return click.option("--out", type=click.Path(path_type=Path), help=text)
