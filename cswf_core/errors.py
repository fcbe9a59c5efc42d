"""Errors that are meant for the person at the keyboard: one sentence, never a traceback."""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable


class CswfError(Exception):
    """A mistake that a person can mend; the command line prints it and exits with `exit_status`.

    It is made of one sentence, or of several, which are lines; a name in one of them cannot begin a line.
    """

    exit_status = 2

    def __str__(self) -> str:
        return "\n".join(printable(str(sentence)) for sentence in self.args)


class DataError(CswfError):
    """Data that cannot be used: wrong shape, NaN, empty, unreadable, or lacking what a plugin needs."""


class RoomError(DataError):
    """Data have classes that there is no room for; `needed` is how many there are in all."""

    def __init__(self, sentence: str, needed: int) -> None:
        super().__init__(sentence)
        self.needed = needed


class KeyedError(CswfError):
    """A parameter that contradicts another plugin's; `key` is where it is, below its plugin's section."""

    def __init__(self, sentence: str, key: str) -> None:
        super().__init__(sentence)
        self.key = key


class PluginError(CswfError):
    """A plugin that is unknown, ambiguous or broken, or that returned something its contract forbids."""


class RunError(CswfError):
    """A run that cannot start or go on, for a reason outside recipe, data and plugins."""


class NotFiniteError(RunError):
    """Particles or samples that are NaN or infinite: the run ends before they are written anywhere."""


class OtherFormatError(RunError):
    """A file of another version of cswf, which is neither damaged nor to be written over."""


class LostRankError(CswfError):
    """Another of the processes that share a flow has ended before its time."""

    exit_status = 1


class OutOfMemoryError(CswfError):
    """Not even one direction at a time fits in the memory of the device."""

    exit_status = 1


class NotRepeatableError(CswfError):
    """Work that was to be recorded and repeated cannot be; it is then done anew each time."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP has arrived: end as after Ctrl-C, with status 143 or 129."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self.exit_status = 128 + number


def printable(text: str) -> str:
    r"""Return a text as one line that a terminal shows and does not obey: unprintable characters as escapes.

    These are line breaks, control characters, those that turn the direction of writing, and half characters. A
    byte of a file's name that is no UTF-8, which Python has as half a character, becomes `\xff`.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


LONGEST_EXCERPT = 60
"""Characters of a text that an error repeats, at most; names that are longer have none near them."""


def excerpt(text: str) -> str:
    """Return a text for a sentence, its end left out if it is long."""
    return text if len(text) <= LONGEST_EXCERPT else text[: LONGEST_EXCERPT - 1] + "…"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known names, whatever their case, or nothing."""
    if len(name) > LONGEST_EXCERPT:  # comparing takes the square of lengths
        return ""
    short = {other.casefold(): other for other in sorted(known) if len(other) <= LONGEST_EXCERPT}
    if name.casefold() in short:
        near = [name.casefold()]
    else:
        near = difflib.get_close_matches(name.casefold(), short, n=3, cutoff=0.6)
    return "; did you mean " + " or ".join(repr(short[other]) for other in near) + "?" if near else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return what `nearest` returns, else the list of known names if they are at most 20, else nothing."""
    names = sorted(set(known))
    listed = "; known: " + ", ".join(names) if 0 < len(names) <= 20 else ""
    return nearest(name, names) or listed
