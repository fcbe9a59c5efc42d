"""A target of fuzzing: a reader with its corpus, changes that know its format, and what is expected of it."""

from __future__ import annotations

import abc
import random
import shutil
from pathlib import Path
from typing import Any, ClassVar

from tests.fuzz.oracle import Verdict, judge

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
"""Small valid files of each format, and named cases; `python -m tests.fuzz.corpus` makes the former anew."""


class Target(abc.ABC):
    """A reader, what it is given, and how its answers are judged."""

    name: ClassVar[str]
    share: ClassVar[int]
    """Inputs of a million that it gets."""
    chunk: ClassVar[int] = 500
    """Inputs that a worker takes at a time."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the target's own, and empty; it may write what it likes there."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def corpus(self) -> Path:
        """The folder of valid files."""
        return CORPUS / self.name

    @property
    def cases(self) -> list[Path]:
        """The named cases: inputs that were once answered wrongly."""
        return sorted((self.corpus / "cases").glob("*"))

    def prepare(self) -> None:  # noqa: B027
        """Make what all inputs need, once, before workers are forked."""

    def enter(self, folder: Path) -> None:
        """Go on in a worker, in a folder of its own."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @abc.abstractmethod
    def make(self, rng: random.Random) -> Any:
        """Return a hostile input."""

    @abc.abstractmethod
    def read(self, given: Any) -> None:
        """Read an input, and check what is made of it; raise `Fault` if that is wrong."""

    def case(self, path: Path) -> Any:
        """Return the input that a named case is."""
        return path.read_bytes()

    def judge(self, given: Any) -> Verdict:
        """Return how an input is answered."""
        return judge(lambda: self.read(given))

    def shown(self, given: Any) -> str:
        """Return an input as a person may look at it."""
        return repr(given)

    def given(self, seed: int, number: int) -> Any:
        """Return the input of a number: always the same."""
        return self.make(random.Random(f"{seed}/{self.name}/{number}"))


def fresh(folder: Path, source: Path | None = None) -> Path:
    """Empty a folder, and fill it with a copy of another."""
    shutil.rmtree(folder, ignore_errors=True)
    if source is None:
        folder.mkdir(parents=True)
    else:
        shutil.copytree(source, folder)
    return folder
