"""What a writer leaves that is killed before its file is whole."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from cswf_core.runs.durable import replacing


def leave_unfinished(path: Path) -> None:
    """Begin to write a file in a process that is killed meanwhile."""
    child = os.fork()
    if child == 0:
        try:
            with replacing(path) as temporary:
                temporary.write_bytes(b"half")
                temporary.with_name(".tmpernCEP").touch()  # as safetensors does
                os._exit(0)  # nothing is tidied up, as after SIGKILL
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert list(path.parent.glob(f".{glob.escape(path.name)}.*.part"))
