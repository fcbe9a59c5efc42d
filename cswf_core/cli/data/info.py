"""`cswf data info`: say what a folder of shards has."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.packed import Manifest
from cswf_core.runs.printing import say, say_json

MOST_NAMES = 12
"""Classes that are listed."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@options.json
def info(folder: Path, as_json: bool) -> None:
    """Say what FOLDER has, which `cswf data pack` has written; only its manifest is read."""
    manifest = Manifest.read(folder)
    if as_json:
        say_json(json.loads(manifest.text()))
        return
    rows = _describe(manifest, folder)
    width = max(len(name) for name in rows)
    for name, text in rows.items():
        say(f"{name:<{width}}  {text}")


def _describe(manifest: Manifest, folder: Path) -> dict[str, str]:
    """Return the lines to print, by their names."""
    classes = manifest.classes
    names = ", ".join(classes[:MOST_NAMES]) + (f", … {len(classes)} in all" if classes[MOST_NAMES:] else "")
    shards = manifest.shards
    path = json.dumps(str(folder), ensure_ascii=False)
    return {
        "packed from": f"{manifest.source.get('use')} (cswf {manifest.cswf}, format {manifest.format})",
        "images": f"{manifest.samples:,} of {'×'.join(map(str, manifest.shape))} bytes",
        "splits": ", ".join(f"{split.name} {split.samples:,}" for split in manifest.splits),
        "classes": names or "none",
        "grey levels": f"{manifest.bin_width:g} apart, from −1",
        "size": f"{manifest.bytes / 1e6:,.1f} MB in {shards} shard{'s' if shards > 1 else ''}",
        "recipe": f"data: {{use: packed, path: {path}}}",
    }
