"""`cswf bench`: time a step, part by part, beside a naive PyTorch step."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from cswf_core.bench.measure import as_text, measure, measure_ceilings, with_naive
from cswf_core.bench.request import BenchRequest, parse_resolution, parse_shape
from cswf_core.cli.terminal import Execution, keep_freed_memory
from cswf_core.errors import RunError
from cswf_core.plugins import Registry
from cswf_core.ranks import Ranks
from cswf_core.recipe import choose_device
from cswf_core.runs.durable import write_durably
from cswf_core.runs.printing import say, say_json
from cswf_core.runs.screen import console


def bench(
    words: tuple[str, ...],
    as_json: bool,
    out: Path | None,
    device: str,
    devices: str | None,
    plugins_dir: tuple[Path, ...],
    **options: Any,
) -> int | None:
    """Do the work of `cswf bench`."""
    recipe, overrides = (words[0], words[1:]) if words and "=" not in words[0] else (None, words)
    if recipe is None and options["stage"] is not None:
        raise RunError("--stage is for a recipe's stages, and no recipe was named")
    for name, parsed in {"shape": parse_shape, "resolution": parse_resolution}.items():
        if options[name] is not None:
            options[name] = parsed(options[name])
    request = BenchRequest(recipe=recipe, overrides=overrides, **options)
    command = shlex.join(["cswf", *sys.argv[1:]])
    chosen = choose_device(device)
    timed = request.load(chosen, Registry.discover(plugins_dir))
    note = request.note(chosen)
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):  # not after minutes
        raise RunError(f"--out {out} cannot be written: it must be a file in a folder that exists")

    def run(ranks: Ranks, own: str) -> None:
        """Time everything, together with other ranks if there are any; the first tells the result."""
        keep_freed_memory()
        terminal = console(stderr=True, quiet=not ranks.leads)
        place = choose_device(own)
        # Drawn by a thread beside what is timed: seldom.
        with terminal.status("measuring what the device can do", refresh_per_second=2) as status:
            ceilings = measure_ceilings(place)
            status.update("timing steps")
            result = measure(timed, request.stage, request.steps, request.warmup, place, ceilings, ranks)
            result = {"command": command, **result, "notes": [note] if note else []}
            if request.naive and ranks.leads:
                status.update("timing naive steps")
                result = with_naive(result, place)
        if not ranks.leads:
            return
        if out is not None:
            write_durably(out, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
        if as_json:
            say_json(result)
        else:
            say(*as_text(result).split("\n"))

    execution = Execution(device=device, devices=devices, quiet=as_json, plugins_dir=plugins_dir)
    return execution.on_ranks(None, lead=run, follow=run)
