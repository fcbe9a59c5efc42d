"""The command `cswf`. Each of its commands is a file, imported when it is called, so that `--help` is quick."""

from __future__ import annotations

import io
import logging
import os
import sys

import click

from cswf_core.cli import failures, signals
from cswf_core.cli.lazy import LazyGroup
from cswf_core.errors import CswfError
from cswf_core.runs.printing import complain

COMMANDS = {
    "run": "Run a recipe and leave its samples in a folder.",
    "resume": "Go on with a run that was stopped or killed, bit for bit.",
    "update": "Teach a run that is done new data; its particles flow on.",
    "sample": "Draw new samples from the model that a run has saved.",
    "inpaint": "Complete pictures with a saved model.",
    "inspect": "Say what a saved model is, and what it cost.",
    "sweep": "Run a recipe with several values of a key, and compare the results.",
    "eval": "Score a run, or a folder or file of images that any program made.",
    "compare": "Score two sets of samples alike, and say which is better beyond noise.",
    "table": "Print scores of runs as a table to paste: Markdown, LaTeX, CSV.",
    "report": "Write a run's page anew, or one page that compares several runs.",
    "bench": "Time a step, part by part, beside a naive PyTorch step.",
    "data": "Pack images into shards that are mapped into memory; check them.",
    "check": "Validate a recipe without running it.",
    "show": "Print a recipe as it will run, and where every value came from.",
    "doctor": "Say whether this installation can work, and what is missing.",
    "completion": "Print the script that lets bash, zsh or fish complete commands.",
    "cite": "Print BibTeX of the works that a recipe rests on.",
    "recipes": "List the built-in recipes and those of packages.",
    "schema": "Print the JSON Schema of recipes, for editors.",
    "new": "Begin a plugin as a small package, with its test and recipe.",
    "plugins": "List the plugins, and which are broken; or show one and its parameters.",
}
"""Each command with its help; its file, or its folder of commands, has its name."""

READING = ("check", "show", "cite", "recipes", "schema", "plugins", "new")
"""Those that only read recipes and plugins, which takes no PyTorch."""


@click.group(
    cls=LazyGroup,
    package="cswf_core.cli",
    helps=COMMANDS,
    reading=READING,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="cswf")
def cli() -> None:
    """Nonparametric image generation with Conditional Sliced-Wasserstein Flows.

    Try: cswf run digits
    """


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
        failures.tell(error)
        return error.exit_status
    if isinstance(error, click.ClickException):
        failures.tell_misuse(error)
        return error.exit_code
    if isinstance(error, OSError):  # a closed pipe, or a full disk behind a redirection
        _discard_output()
        if not isinstance(error, BrokenPipeError):
            failures.show_traceback(error)
            complain(f"cannot read or write: {error}")
        return 1
    failures.tell_unexpected(error)
    return 1


def _interrupted(signal: BaseException | None, error: Exception | None = None) -> int:
    """Say that a signal has ended the command, after the error that has come of it; return the status."""
    if error is not None:
        failures.show_traceback(error)
        named = f"{type(error).__name__}: {' '.join(str(error).split())}"
        complain(*(str(error).split("\n") if isinstance(error, CswfError) else [named]))
    complain("interrupted")
    if isinstance(error, ImportError):  # Python may crash while it ends with a library that is loaded by half
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(signals.status_of(signal))
    return signals.status_of(signal)


def _discard_output() -> None:
    """Throw away what was printed and cannot be written: Python would try again, and end with status 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
