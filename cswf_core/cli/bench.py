"""`cswf bench`: time a step, part by part, beside a naive PyTorch step."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import attrs
import torch
from rich.status import Status

from cswf_core.bench import report
from cswf_core.bench.measure import Document, measure, measure_ceilings, with_naive
from cswf_core.bench.request import BenchRequest, parse_resolution, parse_shape, sweep
from cswf_core.cli import options
from cswf_core.cli.terminal import on_ranks, prepare
from cswf_core.errors import OutOfMemoryError, RunError
from cswf_core.plugins import Registry
from cswf_core.ranks import Ranks
from cswf_core.recipe import Recipe, choose_device
from cswf_core.runs.durable import write_durably
from cswf_core.runs.printing import say, say_json
from cswf_core.runs.screen import console, words

whole = options.WholeNumber(1)


def bench(
    words: tuple[str, ...],
    shape: str | None,
    resolution: str | None,
    stage: int | None,
    steps: int,
    warmup: int,
    swept: str | None,
    naive: bool,
    as_json: bool,
    out: Path | None,
    device: str,
    devices: str | None,
    plugins_dir: tuple[Path, ...],
    **sizes: Any,
) -> int | None:
    """Do the work of `cswf bench`."""
    recipe, overrides = (words[0], words[1:]) if words and "=" not in words[0] else (None, words)
    if recipe is None and stage is not None:
        raise RunError("--stage is for a recipe's stages, and no recipe was named")
    request = BenchRequest(
        recipe=recipe,
        overrides=overrides,
        shape=None if shape is None else parse_shape(shape),
        resolution=None if resolution is None else parse_resolution(resolution),
        **sizes,
    )
    command = shlex.join(["cswf", *sys.argv[1:]])
    chosen = choose_device(device)
    key, requests = ("", {"": request}) if swept is None else sweep(request, swept)
    registry = Registry.discover(plugins_dir)
    recipes = {value: one.load(chosen, registry) for value, one in requests.items()}
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):  # not after minutes
        raise RunError(f"--out {out} cannot be written: it must be a file in a folder that exists")
    bench = Bench(
        command=command,
        recipes=recipes,
        notes={value: one.note(chosen) for value, one in requests.items()},
        key=key,
        stage=stage,
        steps=steps,
        warmup=warmup,
        naive=naive,
        as_json=as_json,
        out=out,
    )
    return on_ranks(devices, device, None, lead=bench.run, follow=bench.run)


@attrs.frozen(kw_only=True)
class Bench:
    """What is to be timed, and how it is told."""

    command: str
    recipes: dict[str, Recipe]
    """By the value of the key that is swept; by "" where none is."""
    notes: dict[str, str]
    key: str
    stage: int | None
    steps: int
    warmup: int
    naive: bool
    as_json: bool
    out: Path | None

    def run(self, ranks: Ranks, device: str) -> None:
        """Time everything, together with other ranks if there are any; the first tells the result."""
        prepare(quiet=self.as_json or not ranks.leads)
        screen = console(stderr=True, quiet=not ranks.leads)
        # Drawn by a thread beside what is timed: seldom.
        with screen.status("measuring what the device can do", refresh_per_second=2) as status:
            document, text = self._timed(ranks, choose_device(device), status)
        if not ranks.leads:
            return
        if self.out is not None:
            write_durably(self.out, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        if self.as_json:
            say_json(document)
        else:
            say(*text.split("\n"))

    def _timed(self, ranks: Ranks, device: torch.device, status: Status) -> tuple[Any, str]:
        """Return the result as a document and as text."""
        ceilings = measure_ceilings(device)

        def timed(value: str, title: str) -> Document:
            status.update(words(f"timing steps{title}"))
            result = measure(self.recipes[value], self.stage, self.steps, self.warmup, device, ceilings, ranks)
            note = self.notes[value]
            result = {"command": self.command, **result, "notes": [note] if note else []}
            if self.naive and ranks.leads:
                status.update(words(f"timing naive steps{title}"))
                result = with_naive(result, device)
            return result

        def fitting(value: str) -> Document:
            """Return a value's result; what does not fit into memory is one, too."""
            try:
                return timed(value, f", {self.key} {value}")
            except OutOfMemoryError as error:
                if not ranks.alone:
                    raise
                return {"error": str(error)}

        if not self.key:
            result = timed("", "")
            return result, report.as_text(result)
        rows = report.swept(self.key, {value: fitting(value) for value in self.recipes})
        return rows, report.sweep_as_text(rows)
