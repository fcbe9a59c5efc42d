"""Errors on the terminal: one sentence, and before it the whole traceback where a person wants that."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import traceback
from itertools import pairwise

import click

from cswf_core.errors import CswfError, LostRankError, PluginError, excerpt
from cswf_core.runs.printing import complain

VARIABLE = "CSWF_TRACEBACK"
"""Environment variable that, with any value but 0, does what --traceback does."""

UNLOADABLE = ("failed to map segment", "Cannot allocate memory")
"""What the system says of a library for which memory does not suffice."""

PAUSE_S = 1.0
"""How long a rank that has failed waits for the first to say why."""


def _switch_on(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Have tracebacks shown, by this process and those it starts."""
    del ctx, param
    if value:
        os.environ[VARIABLE] = "1"


traceback_option = click.Option(
    ["--traceback"],
    is_flag=True,
    expose_value=False,
    callback=_switch_on,
    help="Show the whole traceback of an error before its sentence.",
)
"""`--traceback`, which `cswf` has and every command of it."""


def tell(error: CswfError) -> None:
    """Print what went wrong; of several ranks, the first speaks for all that have met the same."""
    rank = os.environ.get("RANK", "0")
    if rank == "0":
        show_traceback(error)
        complain(*f"{error}{_hint(error)}".split("\n"))
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(PAUSE_S)  # in which this rank is ended, if the first has failed too
    if not isinstance(error, LostRankError):
        show_traceback(error)
        complain(*f"rank {rank}: {error}{_hint(error)}".split("\n"))


def tell_misuse(error: click.ClickException) -> None:
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
    from cswf_core.recipe.sections import KEYS  # needs PyTorch, which a command with overrides has imported

    key = error.option_name.lstrip("-")
    if key.partition(".")[0] not in KEYS:
        return ""
    for word, behind in pairwise([*sys.argv, "…"]):
        if word.partition("=")[0] == error.option_name:
            return word.lstrip("-") if "=" in word else f"{key}={behind}"
    return f"{key}=…"


def tell_unexpected(error: Exception) -> None:
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
    show_traceback(error)
    reason = excerpt(" ".join(str(error).split()).rpartition("DefaultCPUAllocator: ")[2])
    said = f" ({reason})" if reason else ""
    complain(f"this machine's memory does not suffice{said}; ask for less, in number or in size")


def _is_lack_of_memory(error: Exception) -> bool:
    """Say whether an error means that an allocation did not fit; PyTorch is asked only if it is loaded."""
    if isinstance(error, ImportError) and any(sign in str(error) for sign in UNLOADABLE):
        return True
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from cswf_core.kernels.memory import is_out_of_memory

    return is_out_of_memory(error)


def show_traceback(error: BaseException) -> None:
    """Print an error's traceback with all its causes, if --traceback or its variable says so."""
    if _is_on():
        _print_chain(error)


def _is_on() -> bool:
    return os.environ.get(VARIABLE, "0") not in ("", "0")


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
