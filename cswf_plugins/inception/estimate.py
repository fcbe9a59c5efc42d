"""How long the network will take on a CPU, printed after its first batch: it may be hours."""

from __future__ import annotations

import datetime
import logging
import time

import attrs

from cswf_core.interfaces import Workbench

SHORT_S = 10.0
"""Work of fewer seconds is not worth an estimate."""
LONG_S = 300.0
"""Work of more seconds is worth advice on how to shorten it."""

log = logging.getLogger("cswf")


@attrs.define
class TimeEstimate:
    """A `Tell` that passes on the progress with some images, and prints an estimate after their first batch."""

    bench: Workbench
    count: int
    """How many images these are; several processes may share them, and one of them tells of its part."""
    left: int
    """How many images there are in all sets whose features are missing; 0: no estimate is wanted."""
    began: float = attrs.field(factory=lambda: time.monotonic())

    def __call__(self, task: str, done: int, total: int) -> None:
        """Pass progress on."""
        if self.left:
            self._print(self.count * done / total)
            self.left = 0
        self.bench.tell(task, done, total)

    def _print(self, done: float) -> None:
        pace = (time.monotonic() - self.began) / done
        left = round(self.left - done)
        seconds = pace * left
        if seconds < SHORT_S:
            return
        duration = datetime.timedelta(seconds=round(seconds))
        text = "computing the features of %s images takes about %s (h:mm:ss) on this CPU, %.2g images a second"
        log.warning(text, f"{left:,}", duration, 1 / pace)
        if seconds > LONG_S:
            names = [self.bench.names.get(each, "") for each in self.bench.references]
            tests = [f"--against {name}, " for name in names if name.endswith(":test") and len(names) > 1]
            options = f"{''.join(tests)}--real-count 1000, --count 1000, --metric sliced-wasserstein"
            log.warning("faster: a GPU, or these options of `cswf eval`: %s", options)
