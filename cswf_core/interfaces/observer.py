"""Contract of observers: something that watches a run because a recipe asks for it."""

from __future__ import annotations

import abc
from pathlib import Path

from cswf_core.interfaces.contract import Contract


class Observer(Contract):
    """Makes watchers. Subclasses are attrs classes whose fields are the parameters."""

    @abc.abstractmethod
    def watch(self, folder: Path) -> object:
        """Return an object whose hooks watch one run; `folder` is the run's, where it may leave files.

        Its hooks are those of `cswf_core.hookspecs.Watching`, any of them, marked with `@hookimpl`; the
        folder is there from the first of them on. If it has a method `close()`, that is called at the end,
        however the run ends. Where it cannot work, raise `cswf_core.errors.RunError` with one sentence.

        If its state has to survive a kill, it has an attribute `remembered`, the name of that state in
        checkpoints, and two methods. `keep() -> dict[str, Tensor]`, called when a checkpoint is made, makes
        durable what was written and returns the state; `recall(state, total_step)` is called before the first
        step of a run that goes on, with that state, or with nothing and 0 if the run begins anew.
        """
