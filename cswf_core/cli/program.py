"""The command `cswf` from its call to its exit status, and what it prints of errors.

An error is one sentence, and before it the whole traceback where a person wants that.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import time
import traceback
from itertools import pairwise

import click

from cswf_core.cli import deferred, signals
from cswf_core.cli.commands import cli
from cswf_core.cli.options import TRACEBACK
from cswf_core.errors import CswfError, LostRankError, PluginError, excerpt
from cswf_core.runs.printing import complain

UNLOADABLE = ("failed to map segment", "Cannot allocate memory")
"""What the system says of a library for which memory does not suffice."""

PAUSE_S = 1.0
"""How long a rank that has failed waits for the first to say why."""


def call() -> int:
    """Call the command, print what has gone wrong, and return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows no Greek still gets the rest
    _hide_warnings_of_libraries()
    try:
        status: int | None = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        status = _interrupted(error if isinstance(error, KeyboardInterrupt) else error.__context__)
    except Exception as error:
        interruption = signals.just_raised()
        status = _failed(error) if interruption is None else _interrupted(interruption, error)
    try:
        sys.stdout.flush()
    except OSError:  # also an error's own sentence may come with a full disk
        _discard_output()
    return status or 0


def _hide_warnings_of_libraries() -> None:
    """Keep warnings of PyTorch, joblib and others from stderr; `PYTHONWARNINGS=default` prints them."""
    if not sys.warnoptions:
        logging.captureWarnings(True)
        logging.getLogger("py.warnings").propagate = False
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # PyTorch reads this when it is imported


def _failed(error: Exception) -> int:
    """Print what went wrong, and return the status."""
    if isinstance(error, CswfError):
        _tell(error)
        return error.exit_status
    if isinstance(error, click.ClickException):
        _tell_misuse(error)
        return error.exit_code
    if isinstance(error, OSError):  # a closed pipe, or a full disk behind a redirection
        _discard_output()
        if not isinstance(error, BrokenPipeError):
            _show_traceback(error)
            complain(f"cannot read or write: {error}")
        return 1
    _tell_unexpected(error)
    return 1


def _interrupted(cause: BaseException | None, error: Exception | None = None) -> int:
    """Say that a signal has ended the command, after the error that has come of it; return the status."""
    if error is not None:
        _show_traceback(error)
        named = f"{type(error).__name__}: {' '.join(str(error).split())}"
        complain(*(str(error).split("\n") if isinstance(error, CswfError) else [named]))
    complain("interrupted")
    if isinstance(error, ImportError):  # Python may crash while it ends with a library that is loaded by half
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(signals.status_of(cause))
    return signals.status_of(cause)


def _discard_output() -> None:
    """Throw away what was printed and cannot be written: Python would try again, and end with status 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(error: CswfError) -> None:
    """Print what went wrong; of several ranks, the first speaks for all that have met the same."""
    rank = os.environ.get("RANK", "0")
    if rank == "0":
        _show_traceback(error)
        complain(*f"{error}{_hint(error)}".split("\n"))
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(PAUSE_S)  # in which this rank is ended, if the first has failed too
    if not isinstance(error, LostRankError):
        _show_traceback(error)
        complain(*f"rank {rank}: {error}{_hint(error)}".split("\n"))


def _tell_misuse(error: click.ClickException) -> None:
    """Print what is wrong with a command line, as click words it."""
    if isinstance(error, click.NoSuchOption) and (override := _override(error)):
        hint = f"Values of the recipe are written without dashes: {override}"
        error = click.UsageError(f"{error.message} {hint}", error.ctx)
    words = io.StringIO()
    error.show(words)
    complain(*words.getvalue().rstrip("\n").split("\n"))


def _override(error: click.NoSuchOption) -> str:
    """Return `key=value` if what was written as an option is a key of the command's recipe; else nothing."""
    if error.ctx is None or all(param.name != "overrides" for param in error.ctx.command.params):
        return ""
    deferred.defer()
    from cswf_core.recipe.sections import KEYS

    key = error.option_name.lstrip("-")
    if key.partition(".")[0] not in KEYS:
        return ""
    for word, behind in pairwise([*sys.argv, "…"]):
        if word.partition("=")[0] == error.option_name:
            return word.lstrip("-") if "=" in word else f"{key}={behind}"
    return f"{key}=…"


def _tell_unexpected(error: Exception) -> None:
    """Print an error that nobody has foreseen, always with its traceback: it cannot be had again later.

    A lack of memory can come anywhere, and its traceback says nothing of its cause: that is one sentence.
    """
    if _is_lack_of_memory(error):
        _tell_lack_of_memory(error)
        return
    _print_chain(error)
    sentence = f"unexpected {type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
    advice = "this is no mistake of yours: the lines above belong into a bug report"
    if isinstance(error, ImportError):
        advice = "`cswf doctor` says whether a package is missing or broken"
    complain(f"{sentence}; {advice}")


def _tell_lack_of_memory(error: Exception) -> None:
    """Print that memory did not suffice, with what PyTorch or NumPy says of it."""
    _show_traceback(error)
    reason = excerpt(" ".join(str(error).split()).rpartition("DefaultCPUAllocator: ")[2])
    said = f" ({reason})" if reason else ""
    complain(f"this machine's memory does not suffice{said}; ask for less, in number or in size")


def _is_lack_of_memory(error: Exception) -> bool:
    """Say whether an error means that an allocation did not fit; PyTorch is asked only if it is loaded."""
    if isinstance(error, ImportError) and any(sign in str(error) for sign in UNLOADABLE):
        return True
    if "torch" not in sys.modules or deferred.is_deferred():
        return isinstance(error, MemoryError)
    from cswf_core.kernels.memory import is_out_of_memory

    return is_out_of_memory(error)


def _show_traceback(error: BaseException) -> None:
    """Print an error's traceback with all its causes, if --traceback or its variable says so."""
    if _is_on():
        _print_chain(error)


def _is_on() -> bool:
    return os.environ.get(TRACEBACK, "0") not in ("", "0")


def _print_chain(error: BaseException) -> None:
    """Print tracebacks of an error and of those behind it, also where `from None` would hide these."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if link.__cause__ is None:
            link.__suppress_context__ = False
        link = link.__cause__ or link.__context__
    complain(*"".join(traceback.format_exception(error)).rstrip("\n").split("\n"))


def _hint(error: CswfError) -> str:
    """Return where to see more, for an error that a plugin's own code has raised."""
    theirs = isinstance(error, PluginError) and error.__cause__ is not None
    return "; --traceback shows the whole of it" if theirs and not _is_on() else ""
