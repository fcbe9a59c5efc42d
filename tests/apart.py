"""Commands in processes of their own that need no seconds to import PyTorch.

Run as a program, this file is a process that has imported what commands need. It forks for each command it is
asked for; such a child is what `python -m cswf_core` would be by then: in a session of its own, with the
outputs, the environment and the folder of whoever asks.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]  # also where it is run as a program
from tests.processes import killed_in_the_end  # noqa: E402

IMPORTED = """
import cswf_core.cli.running, cswf_core.cli.bench, cswf_core.cli.plugins, cswf_core.cli.reading
import cswf_core.cli.data, PIL.JpegImagePlugin, PIL.PngImagePlugin, sklearn.datasets
from cswf_core.plugins import Registry
Registry.discover()
"""
"""What takes long."""


class Command:
    """A command that has been started, as a `subprocess.Popen`."""

    returncode: int | None = None

    def __init__(self, ending: socket.socket, stdout: int | None, stderr: int | None) -> None:
        self.ending = ending.makefile()
        self.pid = int(self.ending.readline())
        self.stdout, self.stderr = (None if end is None else open(end) for end in (stdout, stderr))  # noqa: SIM115

    def send_signal(self, number: int) -> None:
        """Send the process a signal, if it is there."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for its end, and return its status, or the signal that has ended it, below 0."""
        if self.returncode is None:
            self.returncode = int(self.ending.readline())
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """Wait for its end, and return what it has written."""
        with ThreadPoolExecutor(1) as other:
            out = other.submit(lambda: self.stdout.read() if self.stdout else "")
            err = self.stderr.read() if self.stderr else ""
            self.wait()
            return out.result(), err


class Apart:
    """Calls `cswf` in processes of their own."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    @contextmanager
    def __call__(
        self,
        *arguments: str | Path,
        timeout: float = 120.0,
        environment: dict[str, str] | None = None,
        largest_file: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> Iterator[Command]:
        """A command, with outputs piped unless they are given; killed at the end, or after some seconds."""
        given, pipes = (stdout, stderr), [os.pipe() if end is None else None for end in (stdout, stderr)]
        written = [end if pipe is None else pipe[1] for end, pipe in zip(given, pipes, strict=True)]
        ours, theirs = socket.socketpair()
        order = {
            "arguments": [*map(str, arguments)],
            "environment": {**os.environ, **(environment or {})},
            "folder": os.getcwd(),
            "largest_file": largest_file,
        }
        message = json.dumps(order).encode()
        with theirs:
            handles = [theirs.fileno(), *written]
            socket.send_fds(self.connection, [len(message).to_bytes(8, "big")], handles)
            self.connection.sendall(message)
        for pipe in pipes:
            if pipe is not None:
                os.close(pipe[1])
        with ours:
            child = Command(ours, *(None if pipe is None else pipe[0] for pipe in pipes))
            try:
                with killed_in_the_end(child.pid, timeout):
                    yield child
            finally:
                for stream in (child.stdout, child.stderr):
                    if stream is not None:
                        stream.close()
                child.wait()
                child.ending.close()

    def completed(self, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """Call a command, wait for it to end, and return its status and what it has written."""
        with self(*arguments, **options) as child:
            out, err = child.communicate()
            return subprocess.CompletedProcess([*map(str, arguments)], child.wait(), out, err)


@contextmanager
def prepared(environment: dict[str, str] | None = None) -> Iterator[Apart]:
    """A process that has imported what commands need; it ends when nobody can ask it any more."""
    ours, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, __file__, str(number)],
            env={**os.environ, **(environment or {})},
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    with process, ours:
        yield Apart(ours)


def _ordered(connection: socket.socket) -> None:
    """Fork for each order, and return in the process that is to do it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    while True:
        length, handles, _, _ = socket.recv_fds(connection, 8, 3)
        if not length:
            os._exit(0)
        message = connection.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
        if os.fork() == 0:
            break
        for handle in handles:
            os.close(handle)
    connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    ending, stdout, stderr = handles
    if child != 0:  # this one says how the other has ended
        os.close(stdout)
        os.close(stderr)
        _, status = os.waitpid(child, 0)
        with suppress(OSError):
            os.write(ending, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.setsid()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    order = json.loads(message)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = ["cswf", *order["arguments"]]
    if order["largest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["largest_file"],) * 2)
    for number in (signal.SIGINT, signal.SIGHUP):  # ignored where tests run in the background or under `nohup`
        signal.signal(number, signal.SIG_DFL)  # until the command handles it, as before Python has started
    os.write(ending, f"{os.getpid()}\n".encode())  # from here on a signal meets the command
    for handle in handles:
        os.close(handle)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    exec(IMPORTED)
    gc.freeze()  # what every child would go through, and copy by that
    _ordered(socket.socket(fileno=int(sys.argv[1])))
    from cswf_core import cli

    cli.main()
