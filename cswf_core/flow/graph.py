"""A step recorded once as a CUDA graph and repeated: no launches from Python, and two things at a time.

The directions of the next step, and the data's distributions along them, do not depend on where particles are.
So the graph prepares them on a second stream while the particles move along the directions at hand.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Generic, TypeVar

import attrs
import torch
from torch import Tensor

from cswf_core.errors import CswfError, NotRepeatableError
from cswf_core.interfaces import Key
from cswf_core.interfaces.draw import recorder

log = logging.getLogger("cswf")

Prepared = TypeVar("Prepared")

Prepare = Callable[[Prepared | None], Prepared]
"""(what is to be written over, or None) → the directions of a step, and the data's distributions along them.

What it can, it writes where the old ones are; the rest is copied there later."""

Move = Callable[[Prepared], tuple[Tensor, ...]]
"""Moves the particles along prepared directions, and returns numbers about the move, on the device."""


class Recording:
    """Random numbers of work that is recorded once, as a CUDA graph, and repeated for other steps."""

    SLOTS = 256
    NUMBERS = 1 << 20

    def __init__(self, device: torch.device, step: int) -> None:
        """`step` is the one whose draws are noted; keys of no step, or another, stay what they are."""
        self.device = device
        self.step = step
        self._keys: list[Key] = []
        self._bits = torch.zeros(self.SLOTS, 2, dtype=torch.int64, device=device)
        # Both lie outside of what is recorded: memory in there is used again as soon as it is free.
        self._numbers = torch.zeros(self.NUMBERS, device=device)
        self._used = 0
        self._drawn: list[tuple[Key, Callable[[Key], Tensor], Tensor]] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note the keys that are opened inside, whose bits are then read from the device."""
        token = recorder.set(self)
        try:
            yield
        finally:
            recorder.reset(token)

    def note(self, key: Key, device: torch.device) -> Tensor:
        """Return where on the device a key's bits will be."""
        if device.type != self.device.type or len(self._keys) == self.SLOTS:
            raise NotRepeatableError("more is drawn than can be recorded, or elsewhere")
        self._keys.append(key)
        return self._bits[len(self._keys) - 1]

    def note_numbers(self, key: Key, make: Callable[[Key], Tensor], count: int) -> Tensor:
        """Return where `count` numbers will be that the host makes of a key."""
        place = self._numbers[self._used : self._used + count]
        if len(place) < count:
            raise NotRepeatableError("more numbers are drawn than can be recorded")
        self._used += count
        self._drawn.append((key, make, place))
        return place

    def turn_to(self, step: int) -> None:
        """Put another step's bits and numbers there."""
        halves = [self._at(key, step).halves() for key in self._keys]
        signed = [[half - 2**64 if half >= 2**63 else half for half in pair] for pair in halves]
        if signed:
            self._bits[: len(signed)].copy_(torch.tensor(signed), non_blocking=True)
        for key, make, place in self._drawn:
            place.copy_(make(self._at(key, step)), non_blocking=True)

    def _at(self, key: Key, step: int) -> Key:
        return attrs.evolve(key, step=step) if key.step == self.step else key


class StepGraph(Generic[Prepared]):
    """Two recorded steps that alternate: each uses what the other has prepared."""

    def __init__(
        self,
        step: int,
        prepare: Prepare[Prepared],
        ready: Prepared,
        move: Move[Prepared],
        pool: Any = None,
    ) -> None:
        """Record `move` and, beside it, `prepare` for `step`; `ready` is what the first step uses.

        `pool` is the memory of another recording that is never repeated at the same time.
        """
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.step = step
        with Recording(self.device, step).noting():
            prepare(None)  # what cannot be repeated had better show before anything is recorded
        # What is prepared goes first: it begins with many small pieces of work, which would otherwise wait for
        # each of the large ones beside them.
        self.side: Any = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
        self.ready = ready
        """What the next step uses."""
        first = self._record(prepare, ready, move, None, pool)
        self.pool = first.graph.pool()
        second = self._record(prepare, first.prepared, move, ready, self.pool)
        self._steps = [first, second]

    def _record(
        self,
        prepare: Prepare[Prepared],
        ready: Prepared,
        move: Move[Prepared],
        target: Prepared | None,
        pool: Any,
    ) -> RecordedStep[Prepared]:
        """Record a step that uses what is `ready`, and leaves what it prepares in `target`, or where it is."""
        recording = Recording(self.device, self.step)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            main = torch.cuda.current_stream(self.device)
            self.side.wait_stream(main)
            try:
                with torch.cuda.stream(self.side), recording.noting():
                    prepared = prepare(target)
                    if target is not None:
                        overwrite(target, prepared)
                result = move(ready)
            finally:
                main.wait_stream(self.side)  # without that, what was recorded so far could not even be dropped
        return RecordedStep(graph, recording, prepared if target is None else target, result, prepared)

    def replay(self, step: int) -> tuple[Tensor, ...]:
        """Take a step and return its numbers; `step` is the one that is prepared for."""
        recorded_step = self._steps.pop(0)
        self._steps.append(recorded_step)
        recorded_step.recording.turn_to(step)
        recorded_step.graph.replay()
        self.ready = recorded_step.prepared
        return tuple(part.clone() for part in recorded_step.result)


@attrs.frozen(eq=False)
class RecordedStep(Generic[Prepared]):
    """One of the two recorded steps."""

    graph: Any
    recording: Recording
    prepared: Prepared
    """Where it leaves what it prepares."""
    result: tuple[Tensor, ...]
    alive: object
    """What holds memory that the graph writes to."""


def recorded(
    step: int, prepare: Prepare[Prepared], ready: Prepared, move: Move[Prepared], pool: Any = None
) -> StepGraph[Prepared] | None:
    """Return a recorded step; None if something in it cannot be recorded, such as a draw on the host."""
    try:
        return StepGraph(step, prepare, ready, move, pool)
    except (CswfError, RuntimeError) as error:
        log.debug("steps are not recorded: %s", error)
        return None


def overwrite(old: object, new: object) -> None:
    """Copy every tensor in `new` over the one at the same place in `old`, through lists and attrs objects."""
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        if old.shape != new.shape:
            raise NotRepeatableError("steps differ in shape")
        if old.data_ptr() != new.data_ptr():
            old.copy_(new)
    elif isinstance(old, (list, tuple)) and type(old) is type(new) and len(old) == len(new):
        for a, b in zip(old, new, strict=True):
            overwrite(a, b)
    elif attrs.has(type(old)) and type(old) is type(new):
        kind: Any = type(old)
        for field in attrs.fields(kind):
            overwrite(getattr(old, field.name), getattr(new, field.name))
    elif not (
        old is new or isinstance(old, FunctionType) or (isinstance(old, (int, float, str)) and old == new)
    ):
        raise NotRepeatableError(f"{type(old).__name__} cannot be copied")
