"""`cswf data check`: read a folder of shards and compare its checksums."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.cli.terminal import prepare
from cswf_core.errors import DataError
from cswf_core.packed import Manifest, PackedImages, find_damage
from cswf_core.runs.printing import say
from cswf_core.runs.screen import WorkProgress


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@options.quiet
def check(folder: Path, quiet: bool) -> None:
    """Read all files of FOLDER, which `cswf data pack` has written, and compare their checksums."""
    prepare(quiet=quiet)
    manifest = Manifest.read(folder)
    with closing(WorkProgress(silent=quiet)) as progress:
        damage = find_damage(folder, manifest, progress.tell)
    if damage:
        raise DataError(*damage)
    PackedImages.open(folder, manifest)
    if not quiet:
        count = sum(1 for _ in manifest.files())
        say(f"{folder}: fine, all {count} files ({manifest.bytes / 1e6:,.1f} MB) are as they were written")
