"""The folder of a run: its files, written atomically, and the lock that keeps other processes out."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cswf_core.documents import parse_json, read_document, read_json, structured
from cswf_core.errors import RunError, printable
from cswf_core.files import is_text
from cswf_core.runs.durable import encoded, open_plainly, remove_parts, write_durably
from cswf_core.runs.facts import RunFacts

FILES = (
    "recipe.yaml",
    "run.json",
    "metrics.jsonl",
    "samples.png",
    "samples.npz",
    "real.npz",
    "flow.png",
    "frames.npz",
    "flow.gif",
    "completions.png",
    "metrics.json",
    "report.html",
    "samples-offline.npz",
    "samples-offline.png",
    "counts.safetensors",
)
"""Files that a run writes, beside the figures that metrics.json lists; `--force` removes no others."""

FOLDERS = {
    "checkpoints": ("manifest.json", "step-*.safetensors"),
    "model": ("model.json", "fitted.safetensors", "tables-*.safetensors"),
}
"""Folders that a run makes, with the names of the files in them."""

FIRST_FILES = r"(run\.json|recipe\.yaml)|\.(run\.json|recipe\.yaml)\..*part"
"""Names of the two files that a run writes first, whole or unfinished."""


class RunFolder:
    """A folder for one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: list[Path] = []
        """Folders that were made for it, each before those inside it."""
        self._claimed = False
        """Whether an empty run.json was made here, which keeps other runs out until there is a record."""

    @classmethod
    def fresh(cls, parent: Path, name: str) -> RunFolder:
        """Make and return the first of parent/name, parent/name-2, parent/name-3, … that is free.

        Making it at once keeps it from another run that starts at the same moment.
        """
        number, path = 1, parent / name
        made = cls(parent)
        made.make()
        try:
            while True:
                try:
                    path.mkdir()
                    fresh = cls(path)
                    fresh._made = [*made._made, path]
                    return fresh
                except FileExistsError:
                    number += 1
                    path = parent / f"{name}-{number}"
        except OSError as error:
            made.withdraw()
            raise RunError(f"{path} cannot be made: {error.strerror or error}") from None

    def withdraw(self) -> None:
        """Take back what was made for a run that has not begun: its files, and folders with nothing else in.

        It has begun when run.json has its record. A folder that was claimed is still to be `held`.
        """
        with contextlib.suppress(OSError, RunError):
            if self._claimed and self.file("run.json").lstat().st_size == 0:
                self.clear()
        for path in reversed(self._made):
            with contextlib.suppress(OSError):
                path.rmdir()
        self._claimed, self._made = False, []

    def refuse_if_taken(self, *, force: bool, reading: Path | None = None) -> None:
        """Raise `RunError` if the folder is a file, or has something in it and `force` is not given.

        `reading` is the recipe's file, which a run in its own folder would overwrite.
        """
        if not is_text(str(self.path.absolute())):  # safetensors reads no such paths
            name = printable(str(self.path.absolute()))
            raise RunError(f"{name} is no text (UTF-8), and models cannot lie there; give another --out")
        try:
            if self.path.exists() and not self.path.is_dir():
                raise RunError(f"{self.path} is a file; --out names a folder")
            if reading is not None and any(reading == self.file(name).resolve() for name in FILES):
                raise RunError(
                    f"{reading} is the recipe itself, and a run here would overwrite it; give another --out"
                )
            if self.path.is_dir() and any(self.path.iterdir()) and not force:
                hint = f"--force to replace {', '.join(FILES[:2])} and the other files of a run in it"
                raise RunError(f"{self.path} is not empty; give another --out, or {hint}")
        except (OSError, ValueError, RuntimeError) as error:
            raise RunError(f"{self.path} cannot be used: {error}") from None

    def create(self, *, force: bool) -> None:
        """Make the folder and claim it; with `force`, remove the files of an earlier run from it first."""
        self.make()
        if force:
            self.clear()
        try:
            self._claimed = True  # before it is so: a signal may come in between
            self.file("run.json").touch(exist_ok=False)
        except FileExistsError:
            self._claimed = False
            raise RunError(f"{self.path} has been taken by another run; give another --out") from None
        except OSError as error:
            raise self._unwritable(error) from None

    def make(self) -> None:
        """Make the folder if it is not there."""
        try:
            for path in reversed((self.path, *self.path.parents)):
                if not path.exists():
                    self._made.append(path)
                    path.mkdir(exist_ok=True)
            self.path.mkdir(exist_ok=True)  # raises for a file
        except OSError as error:
            raise self._unwritable(error) from None

    def clear(self, names: Sequence[str] | None = None) -> None:
        """Remove files, those that a run leaves if not said otherwise, and nothing else: of a link, itself.

        Recipe and record are the last: a kill meanwhile leaves a run that can go on, or be begun again.
        """
        try:
            if names is None:
                self._remove((*self.figures(), *FILES[2:]))
                self._remove_folders()
            self._remove(FILES[:2] if names is None else names)
        except OSError as error:
            raise self._unwritable(error) from None

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            self.file(name).unlink(missing_ok=True)
            remove_parts(self.path, name)

    def _remove_folders(self) -> None:
        for folder, patterns in FOLDERS.items():
            if self.file(folder).is_symlink():
                self.file(folder).unlink()
            for path in [path for pattern in patterns for path in self.file(folder).glob(pattern)]:
                path.unlink(missing_ok=True)
            remove_parts(self.file(folder))
            if self.file(folder).is_dir() and not any(self.file(folder).iterdir()):
                self.file(folder).rmdir()

    def figures(self) -> list[str]:
        """Return the names of the pictures that metrics have drawn."""
        document = self.read_json("metrics.json")
        listed = document.get("figures") if isinstance(document, dict) else None
        names = map(str, listed) if isinstance(listed, list) else ()
        return [name for name in names if re.fullmatch(r"[a-z0-9-]+\.png", name)]

    def file(self, name: str) -> Path:
        """Return the path of one of the run's files."""
        return self.path / name

    def write(self, name: str, content: str | bytes) -> None:
        """Replace a file as a whole: after a crash it is the old one or the new one, never half of either."""
        write_durably(self.file(name), content)

    def _unwritable(self, error: OSError) -> RunError:
        return RunError(f"{self.path} cannot be written: {error.strerror or error}")

    def facts(self) -> RunFacts | None:
        """Return the facts of the run here; None if there is none; raise `RunError` if they are damaged."""
        path = self.file("run.json")
        try:
            if path.stat().st_size == 0:  # a run has claimed the folder, and has not begun
                return None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror or error}") from None
        return read_document(path, RunFacts, advice="; bring back what was there, or begin anew with --force")

    def read_json(self, name: str) -> Any:
        """Return what a JSON file says; None if there is none that can be read."""
        try:
            return read_json(self.file(name))
        except (OSError, ValueError):
            return None

    def append(self, name: str, line: str) -> None:
        """Add a line to a file."""
        try:
            with open_plainly(self.file(name), "ab") as file:
                file.write(encoded(line))
        except OSError as error:
            raise RunError(f"{self.file(name)} cannot be written: {error.strerror or error}") from None

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a file with an object in each line, up to the first that makes no sense."""
        rows: list[dict[str, Any]] = []
        if not self.file(name).is_file():  # to open a pipe may take for ever
            return rows
        try:
            for line in self.file(name).read_text(encoding="utf-8").splitlines():
                rows.append(structured(parse_json(line), dict[str, Any]))
        except (OSError, ValueError):
            pass  # a kill may have cut the last line
        return rows

    def refuse_links(self) -> None:
        """Raise `RunError` if a folder that the run writes to is a link: what lies behind is not the run's."""
        for path in map(self.file, FOLDERS):
            if path.is_symlink():
                raise RunError(f"{path} is a link, and a run writes to its own folder only; remove the link")

    @contextmanager
    def held(self, patience_s: float = 0.0) -> Iterator[None]:
        """Keep the folder from other processes; it is free again when this ends, or the process does.

        Raises `RunError` if another process has it, and does not leave it in some seconds.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            deadline = time.monotonic() + patience_s
            while not _locks(descriptor):
                if time.monotonic() >= deadline:
                    raise RunError(f"{self.path} is in use: another process is running there")
                time.sleep(0.05)
            yield
        finally:
            os.close(descriptor)

    @property
    def begun(self) -> bool:
        """Whether a run has been begun here that can go on."""
        return self.file("recipe.yaml").is_file() and self.facts() is not None

    @property
    def only_touched(self) -> bool:
        """Whether a run was killed here before it had written its recipe: there is nothing to lose."""
        names = [path.name for path in self.path.iterdir()] if self.path.is_dir() else []
        return bool(names) and all(map(re.compile(FIRST_FILES).fullmatch, names))

    @property
    def done(self) -> bool:
        """Whether a run has come to its end here."""
        facts = self.facts()
        return facts is not None and facts.status == "done" and self.file("samples.npz").is_file()

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as indented JSON."""
        self.write(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _locks(descriptor: int) -> bool:
    """Say whether this process holds the lock of a folder from now on, or there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True
