"""`python -m tests.soak`: hundreds of commands under faults, with what must not be in the end."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Lock

sys.path[:0] = [str(Path(__file__).parents[2])]

from tests.apart import Apart, prepared  # noqa: E402
from tests.soak import faults  # noqa: E402
from tests.soak.case import Case, Plan, Whole, undisturbed  # noqa: E402
from tests.soak.ledger import Finding, Ledger  # noqa: E402
from tests.soak.works import WORKS, Work  # noqa: E402

THREADS = {"OMP_NUM_THREADS": "1", "CSWF_TRACEBACK": "0"}
"""The environment of commands."""


class Soak:
    """Cases of a seed, carried out by some workers in a folder, and their ledger."""

    def __init__(self, base: Path, seed: int, *, keep: bool = False) -> None:
        self.base, self.seed, self.keep = base, seed, keep
        self.ledger = Ledger()
        self._wholes: dict[str, Whole] = {}
        self._making = Lock()
        self.stopping = Event()
        """Set when no further case is to begin."""
        self.can_mount, self.can_forbid = faults.can_mount(base), faults.can_forbid(base)
        if not self.can_mount:
            self.ledger.skipped.append("no disk gets full: this process may mount no file system")
        if not self.can_forbid:
            self.ledger.skipped.append(
                "no folder becomes read-only: root may write anywhere, and chattr does not work"
            )

    def whole(self, work: Work, apart: Apart) -> Whole:
        """Return what a work leaves undisturbed; done once."""
        with self._making:
            return self._whole(work, apart)

    def _whole(self, work: Work, apart: Apart) -> Whole:
        if work.name not in self._wholes:
            before = WORKS[work.source] if work.source else None
            source = None if before is None else before.target(self._whole(before, apart).folder)
            self._wholes[work.name] = undisturbed(work, self.base, apart, source)
        return self._wholes[work.name]

    def possible(self, plan: Plan) -> bool:
        """Say whether this machine can have a plan's faults."""
        kinds = {type(fault) for fault in plan.faults}
        return (self.can_mount or faults.SmallDisk not in kinds) and (
            self.can_forbid or faults.ReadOnly not in kinds
        )

    def do(self, plan: Plan, apart: Apart) -> Case | None:
        """Carry out a plan, if that is possible here."""
        if not self.possible(plan):
            return None
        case = Case(plan, self.base, self.whole(plan.work, apart), apart, self.ledger)
        before = len(self.ledger.findings)
        try:
            case.carry_out()
        except Exception as error:  # the case is to be had again, and the others go on
            traceback.print_exception(error)
            self.ledger.note(Finding("soak", plan.name, f"{plan.work.name}: the soak itself fails: {error!r}"))
        self.ledger.cases += 1
        case.clean(keep=self.keep and len(self.ledger.findings) > before)
        return case

    def work_off(self, numbers: Iterator[int], deadline: float, workers: int) -> None:
        """Carry out cases until a moment, some at once, and show how far it is."""
        taking = Lock()

        def take() -> None:
            with prepared(THREADS) as apart:
                while time.monotonic() < deadline and not self.stopping.is_set():
                    with taking:
                        number = next(numbers, None)
                    if number is None:
                        return
                    case = self.do(Plan.of(self.seed, number), apart)
                    if case is not None:
                        self.show(case)

        with ThreadPoolExecutor(workers) as threads:
            for future in [threads.submit(take) for _ in range(workers)]:
                future.result()

    def show(self, case: Case) -> None:
        """Print the findings of a case, and how many cases are done."""
        own = [finding for finding in self.ledger.findings if finding.case == case.plan.name]
        for finding in own:
            print(f"{finding.kind}: {finding.sentence}\n    {finding.again}", flush=True)
        if own:
            print("\n".join(f"    {line}" for line in case.lines), flush=True)
        if own or self.ledger.cases % 10 == 0:
            total, bad = self.ledger.commands.total(), len(self.ledger.findings)
            print(f"{self.ledger.cases} cases, {total} commands, {bad} findings", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak, print the table, and return 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="what cases are drawn from")
    parser.add_argument("--workers", type=int, default=2, choices=(1, 2), help="cases at once")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", metavar="SEED:NUMBER", help="one case alone, with its commands")
    parser.add_argument("--times", type=int, default=1, help="how often that case is done: moments vary")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the folders of cases with findings there"
    )
    given = parser.parse_args(arguments)
    os.environ.update(THREADS)
    with ExitStack() as closing:
        if given.keep is not None:
            given.keep.mkdir(parents=True, exist_ok=True)
        base = given.keep or Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        if given.case is not None:
            ledger = _one(given.case, given.times, base, keep=given.keep is not None)
        else:
            soak = Soak(base, given.seed, keep=given.keep is not None)
            for number in (signal.SIGINT, signal.SIGTERM):  # the cases that have begun come to their end
                signal.signal(number, lambda *_: soak.stopping.set())
            deadline = time.monotonic() + 60 * given.minutes
            soak.work_off(itertools.count(given.first), deadline, given.workers)
            ledger = soak.ledger
    print(ledger.table())
    if given.json is not None:
        given.json.write_text(json.dumps(ledger.document(), indent=2) + "\n")
    return 1 if ledger.findings else 0


def _one(name: str, times: int, base: Path, *, keep: bool) -> Ledger:
    """Carry out one case, as often as asked for, with its commands."""
    seed, number = map(int, name.split(":"))
    soak = Soak(base, seed, keep=keep)
    with prepared(THREADS) as apart:
        for _ in range(times):
            plan = Plan.of(seed, number)
            print(f"{plan.work.name}: {', '.join(fault.name for fault in plan.faults)}", flush=True)
            case = soak.do(plan, apart)
            print("\n".join(case.lines) if case is not None else "this machine cannot have such a fault")
    return soak.ledger


if __name__ == "__main__":
    sys.exit(main())
