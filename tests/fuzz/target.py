"""A target of fuzzing: a reader with its corpus, changes that know its format, and what is expected of it."""

from __future__ import annotations

import abc
import shutil
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.fuzz.oracle import judge

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
"""Small valid files of each format, and named cases."""


class Target(abc.ABC):
    """A reader, what it is given, and how its answers are judged."""

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        """`folder` is the target's own, and empty; it may write what it likes there."""
        self.folder = fresh(folder)
        self.corpus = CORPUS / self.name
        self.seeds = contents(self.corpus) if self.corpus.is_dir() else {}
        """The valid files."""
        self.prepare()

    def prepare(self) -> None:  # noqa: B027
        """Make what all inputs need, once."""

    @abc.abstractmethod
    def make(self, draw: DrawFn) -> Any:
        """Return a hostile input."""

    @abc.abstractmethod
    def read(self, given: Any) -> None:
        """Read an input, and check what is made of it; raise `Fault` if that is wrong."""

    def case(self, path: Path) -> Any:
        """Return the input that a named case is: the name behind its last `--`, and its content."""
        return path.name.rpartition("--")[2], path.read_bytes()

    @property
    def inputs(self) -> st.SearchStrategy[Any]:
        """Hostile inputs, as Hypothesis draws them."""
        return st.composite(lambda draw: self.make(draw))()

    def judge(self, given: Any) -> str:
        """Return whether an input is accepted or refused; raise if it is answered wrongly."""
        return judge(lambda: self.read(given))


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder: name → content."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def fresh(folder: Path, source: Path | dict[str, bytes] | None = None) -> Path:
    """Empty a folder, and fill it with a copy of another, or with files by name."""
    shutil.rmtree(folder, ignore_errors=True)
    if isinstance(source, Path):
        shutil.copytree(source, folder)
        return folder
    folder.mkdir(parents=True)
    for name, content in (source or {}).items():
        (folder / name).write_bytes(content)
    return folder
