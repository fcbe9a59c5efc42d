"""`python -m tests.fuzz`: hostile inputs for every reader, by number; status 1 if one is answered wrongly."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when PyTorch is imported

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import attrs
import torch

from tests.fuzz import oracle
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.fuzz.workers import Chunk, Tally, fuzz, isolate

WHOLE = sum(target.share for target in TARGETS.values())


def main(arguments: list[str] | None = None) -> int:
    """Fuzz as the command line says, and return the exit status."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    names = options.target or list(TARGETS)
    room = (
        Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    )  # in memory: thousands of files a second
    folder = Path(tempfile.mkdtemp(prefix="cswf-fuzz-", dir=room))
    began = time.monotonic()
    environment = dict(os.environ)
    try:
        isolate(folder / "parent")
        targets = {name: TARGETS[name](folder / "seeds" / name) for name in names}
        for target in targets.values():
            target.prepare()
        if options.input is not None:
            return _once(targets[names[0]], options.seed, options.input, folder)
        chunks = planned(targets, options.inputs, options.first)
        deadline = None if options.minutes is None else began + 60 * options.minutes
        show = (
            None
            if options.quiet
            else lambda tallies: _progress(tallies, sum(c.stop - c.first for c in chunks), began)
        )
        tallies = fuzz(
            targets,
            chunks,
            options.seed,
            processes=options.processes,
            folder=folder,
            tell=show,
            deadline=deadline,
        )
    finally:
        os.environ.clear()
        os.environ.update(environment)
        shutil.rmtree(folder, ignore_errors=True)
    print(table(tallies, options.seed, time.monotonic() - began), flush=True)
    if options.json:
        document = {
            "seed": options.seed,
            "targets": {name: attrs.asdict(tally) for name, tally in tallies.items()},
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(any(tally.failed for tally in tallies.values()))


def planned(targets: dict[str, Target], inputs: int, first: int = 0) -> list[Chunk]:
    """Return the inputs of all targets, by their shares, in chunks that come in turn."""
    whole = sum(target.share for target in targets.values())
    chunks: list[tuple[float, Chunk]] = []
    for name, target in targets.items():
        count = max(1, round(inputs * target.share / whole))
        for start in range(0, count, target.chunk):
            stop = min(count, start + target.chunk)
            chunks.append((stop / count, Chunk(name, first + start, first + stop)))
    return [chunk for _, chunk in sorted(chunks, key=lambda each: each[0])]


def _once(target: Target, seed: int, number: int, folder: Path) -> int:
    """Read one input in this process, and show it with its traceback."""
    given = target.given(seed, number)
    text = target.shown(given)
    print(f"{target.name}, seed {seed}, input {number}:\n{text[:20_000]}", flush=True)
    target.enter(folder / "once" / target.name)
    oracle.limit_memory()
    verdict = target.judge(given)
    print(f"{verdict.kind} in {verdict.seconds:.3f} s  {verdict.group}\n{verdict.detail}")
    if verdict.kind == "refused":
        try:
            target.read(given)
        except Exception:
            traceback.print_exc()
    return int(verdict.kind == "failure")


def _progress(tallies: dict[str, Tally], whole: int, began: float) -> None:
    done = sum(tally.inputs for tally in tallies.values())
    failed = sum(tally.failed for tally in tallies.values())
    groups = sum(len(tally.groups) for tally in tallies.values())
    seconds = time.monotonic() - began
    line = (
        f"{done:,} of {whole:,} inputs, {done / seconds:,.0f} a second, {failed:,} failures in {groups} groups"
    )
    if sys.stderr.isatty():
        print(f"\r{line}   ", end="", file=sys.stderr, flush=True)
    elif int(seconds) % 30 == 0:
        print(line, file=sys.stderr, flush=True)


def table(tallies: dict[str, Tally], seed: int, seconds: float) -> str:
    """Return what came out: a line for each target, and one for each group of failures."""
    counts = "".join(f"{name:>10}" for name in ("inputs", "refused", "accepted", "failures"))
    heading = f"{'target':<11}{counts}{'slowest':>18}{'memory':>9}{'ms each':>9}"
    lines = ["", heading]
    for name, t in tallies.items():
        slowest = f"{t.slowest:.2f} s ({t.slowest_input})"
        lines.append(
            f"{name:<11}{t.inputs:>10,}{t.refused:>10,}{t.accepted:>10,}{t.failed:>10,}{slowest:>18}"
            f"{t.growth / 1e6:>6,.0f} MB{1e3 * t.seconds / max(1, t.inputs):>9.2f}"
        )
    inputs = sum(t.inputs for t in tallies.values())
    lines.append(f"{inputs:,} inputs with seed {seed} in {seconds:,.0f} s")
    for name, tally in tallies.items():
        for failures in sorted(tally.groups.values(), key=lambda f: -f.count):
            again = f"python -m tests.fuzz --target {name} --seed {seed} --input {failures.first}"
            lines.append(f"\n{name}: {failures.count:,} × {failures.group}\n    {again}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=WHOLE, help="inputs of all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--target", action="append", choices=list(TARGETS), help="may be given several times; all if left out"
    )
    parser.add_argument("--input", type=int, help="read this one input, and show it with its traceback")
    parser.add_argument("--first", type=int, default=0, help="number of the first input of each target")
    parser.add_argument("--minutes", type=float, help="begin no more inputs after so many minutes")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="write counts and failures to this file")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


if __name__ == "__main__":
    sys.exit(main())
