"""`cswf new`: begin a plugin, as a small package that works as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from cswf_core.plugins import Registry
from cswf_core.runs.printing import say
from cswf_core.scaffold import names_of, new_package


@click.command()
@click.argument("kind", metavar="KIND")
@click.argument("name")
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), required=False)
def new(kind: str, name: str, folder: Path | None) -> None:
    """Begin a plugin of KIND, called NAME, as a package in DIR (cswf-NAME if left out).

    KIND is projection, cdf, condition, schedule, coordinates, dataset, metric or observer. The package works as
    it is: one file with a small plugin, its recipe, a test that runs the kit, and a README with the commands.
    """
    names = names_of(kind, name, Registry.discover())
    place = Path(names.distribution) if folder is None else folder
    for path in new_package(names, place):
        say(str(path))
    say("", "Next:")
    for command in (
        f"cd {shlex.quote(str(place))}",
        "pip install --editable '.[dev]'",
        "pytest",
        f"cswf run {name}.yaml",
        f"cswf plugins check {name}",
    ):
        say(f"  {command}")
