"""How commands end where something goes wrong late or anywhere: one sentence, and a status that stands."""

from __future__ import annotations

import os
import signal
import sys
import time
from signal import SIGHUP, SIGINT, SIGTERM

import pytest

from cswf_core import load_recipe
from cswf_core.cli import signals
from cswf_core.cli.options import TRACEBACK
from cswf_core.errors import RunError
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch
from tests.cli.conftest import TINY, write_plugin
from tests.conftest import Outcome
from tests.processes import PYTHON, completed

SMALL = ("run", "digits", *TINY, "evaluate.metrics=[]", "--device", "cpu")
WATCHER = """
import atexit, os, signal

@attrs.frozen
class Watcher:
    folder: object

    @hookimpl
    def {hook}(self):
        {deed}
"""


@pytest.fixture
def doing(tmp_path):
    """Options with which a run has an observer that does something in one of its hooks."""

    def options(deed: str, hook: str = "after_step") -> tuple[str, ...]:
        body = "def watch(self, folder):\n    return Watcher(folder)"
        write_plugin(tmp_path / "plugins/doing.py", "observer", body, WATCHER.format(deed=deed, hook=hook))
        return ("observers=[doing]", "--plugins-dir", str(tmp_path / "plugins"), "--out", str(tmp_path / "run"))

    return options


@pytest.fixture
def _python_s_handlers():
    """Signals as they are in a terminal: a job in the background ignores SIGINT."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in signals.ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_lack_of_memory_anywhere_is_one_sentence(cswf, doing):
    ended = cswf(*SMALL, "--quiet", *doing("raise MemoryError"))
    assert ended.status == 1
    assert ended.err.startswith("this machine's memory does not suffice; ")
    assert len(ended.err.splitlines()) == 1


ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:113] data. DefaultCPUAllocator: not enough memory: you tried to allocate"
)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ImportError("_contourpy.so: failed to map segment from shared object"),
            "this machine's memory does not suffice (_contourpy.so: failed to map segment",
        ),
        (RuntimeError(ALLOCATOR), "this machine's memory does not suffice (not enough memory: you tried to"),
        (LookupError("no such thing"), "unexpected LookupError: no such thing; this is no mistake of yours"),
        (
            ModuleNotFoundError("No module named 'yaml'"),
            "'yaml'; `cswf doctor` says whether a package is missing",
        ),
    ],
)
def test_an_error_anywhere_is_a_sentence_with_its_traceback_if_nobody_has_foreseen_it(
    cswf, monkeypatch, error, said
):
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("cswf_core.cli.program.cli.main", fail)
    ended = cswf("recipes")
    assert ended.status == 1
    *before, last = ended.err.splitlines()
    assert said in last
    assert before[:1] == ([] if "memory" in said else ["Traceback (most recent call last):"])


def test_results_that_somebody_removes_while_a_run_ends_are_told(cswf, doing):
    ended = cswf(*SMALL, *doing("(self.folder / 'metrics.json').unlink()", "after_evaluation"))
    assert ended.status == 2
    assert "metrics.json is gone: somebody has changed the folder meanwhile" in ended.err


def test_a_signal_while_python_ends_changes_no_status(apart, doing):
    late = "atexit.register(os.kill, os.getpid(), signal.SIGTERM)"
    ended = apart.completed(*SMALL, *doing(late, "after_run"))
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr


def test_output_that_cannot_be_written_leaves_the_status_of_an_error(apart, doing):
    with open("/dev/full", "w") as full:
        ended = apart.completed(*SMALL, *doing("1 / 0"), stdout=full.fileno())
    assert ended.returncode in (1, 2)
    assert "Traceback" not in ended.stderr


@pytest.mark.usefixtures("_python_s_handlers")
@pytest.mark.parametrize(
    ("number", "error", "status", "said"),
    [
        (SIGTERM, ImportError("initialization failed"), 143, "ImportError: initialization failed"),
        (SIGINT, RunError("tables cannot be read (no shape)"), 130, "tables cannot be read (no shape)"),
    ],
)
def test_a_signal_of_which_a_library_makes_another_error_is_an_interruption(
    cswf, monkeypatch, number, error, status, said
):
    def load(**_: object) -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        except KeyboardInterrupt:
            raise error from None

    monkeypatch.setattr("cswf_core.cli.program.cli.main", load)
    monkeypatch.setattr("os._exit", sys.exit)
    assert cswf("recipes") == Outcome(status, "", f"{said}\ninterrupted\n")


@pytest.mark.usefixtures("_python_s_handlers")
def test_a_signal_that_is_ignored_as_by_nohup_stays_so(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    signal.signal(SIGHUP, signal.SIG_IGN)
    signals.install()
    assert signal.getsignal(SIGHUP) is signal.SIG_IGN


@pytest.mark.usefixtures("_python_s_handlers")
@pytest.mark.parametrize(("number", "status"), [(SIGTERM, 143), (SIGHUP, 129), (SIGINT, 130)])
def test_a_signal_while_an_object_is_deleted_is_not_lost(cswf, monkeypatch, number, status):
    class Deleted:
        def __del__(self):
            os.kill(os.getpid(), number)
            time.sleep(60)

    def work(**_: object) -> None:
        Deleted()
        time.sleep(60)

    monkeypatch.setattr("cswf_core.cli.program.cli.main", work)
    assert cswf("recipes") == Outcome(status, "", "interrupted\n")


@pytest.mark.parametrize("module", ["cswf_core.cli.signals", "click"])
def test_ctrl_c_while_modules_load_ends_without_a_traceback(module):
    code = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            sys.meta_path.remove(self)\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv = ['cswf', 'cite', 'digits']\n"
        "from cswf_core.cli import main\n"
        "main()\n"
    )
    ended = completed(PYTHON, "-c", code)
    assert ended.returncode == 130
    assert ended.stdout == ""
    assert ended.stderr.strip() in ("", "interrupted")


def test_ctrl_c_where_python_can_raise_nothing_ends_a_command_that_has_not_begun():
    """As in the callbacks in which Python's imports let go of their locks."""
    code = (
        "import os, signal, sys\n"
        "class Deleted:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'cswf_core.cli.signals':\n"
        "            Deleted()\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from cswf_core.cli import main\n"
        "main()\n"
    )
    ended = completed(PYTHON, "-c", code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_warnings_of_libraries_are_printed_only_on_request():
    code = (
        "import os, warnings\n"
        "from cswf_core.cli import main, program\n"
        "def warn(**_):\n"
        "    print(os.environ.get('TORCH_CPP_LOG_LEVEL'))\n"
        "    warnings.warn('noise')\n"
        "program.cli.main = warn\n"
        "main()\n"
    )
    hidden = ("PYTHONWARNINGS", "TORCH_CPP_LOG_LEVEL")
    usual = {name: value for name, value in os.environ.items() if name not in hidden}
    ended = completed(PYTHON, "-c", code, env=usual)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ERROR\n", "")
    ended = completed(PYTHON, "-c", code, env={**usual, "PYTHONWARNINGS": "default"})
    assert (ended.returncode, ended.stdout) == (0, "None\n")
    assert "UserWarning: noise" in ended.stderr


@pytest.mark.usefixtures("_python_s_handlers")
def test_a_signal_that_an_import_discards_is_not_lost(cswf, monkeypatch, tmp_path):
    (tmp_path / "discarding.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("cswf_core.cli.program.cli.main", lambda **_: signals.imported("discarding"))
    ended = cswf("recipes")
    sys.modules.pop("discarding", None)
    assert ended == Outcome(130, "", "interrupted\n")


@pytest.mark.parametrize("file", ["recipe.yaml", "run.json"])
def test_a_run_that_is_stopped_before_it_could_go_on_leaves_no_folder(tmp_path, monkeypatch, file):
    write = RunFolder.write

    def interrupted(folder: RunFolder, name: str, content: str | bytes) -> None:
        if name == file:
            monkeypatch.undo()
            raise KeyboardInterrupt
        write(folder, name, content)

    monkeypatch.setattr(RunFolder, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launch(load_recipe("digits", [*TINY, "evaluate.metrics=[]"]), RunFolder(tmp_path / "run"), device="cpu")
    begun = file == "run.json"  # its recipe is there, and how it ended
    assert RunFolder(tmp_path / "run").begun == begun
    assert (tmp_path / "run").exists() == begun


@pytest.fixture(autouse=True)
def _without_tracebacks(monkeypatch):
    """The option sets the variable, which is to be as before after each test."""
    monkeypatch.setenv(TRACEBACK, "0")


@pytest.fixture
def failing(tmp_path):
    """A run whose projection fails."""
    body = "def sample(self, space, count, draw):\n    return deep()"
    write_plugin(tmp_path / "faulty.py", "projection", body, "def deep():\n    return {}['angle']")
    return (
        *("run", "digits", "projection=faulty", "--plugins-dir", tmp_path),
        *("--out", tmp_path / "out", "--device", "cpu", "--quiet"),
    )


def test_the_error_of_a_plugin_is_a_sentence_that_names_the_option(cswf, failing):
    sentence = cswf.refusal(*failing)
    assert "sample raised KeyError: 'angle'" in sentence
    assert sentence.endswith("; --traceback shows the whole of it\n")


@pytest.mark.parametrize("place", ["before", "after", "variable"])
def test_the_traceback_has_the_plugin_s_frames_and_ends_in_the_sentence(cswf, failing, monkeypatch, place):
    if place == "variable":
        monkeypatch.setenv(TRACEBACK, "1")
    done = cswf(*{"before": ("--traceback", *failing), "after": (*failing, "--traceback")}.get(place, failing))
    assert done.status == 2
    lines = done.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert any("faulty.py" in line and "in deep" in line for line in lines)
    assert "KeyError: 'angle'" in lines
    assert "sample raised KeyError: 'angle'" in lines[-1]
    assert "--traceback" not in lines[-1]


def test_every_command_has_the_option(cswf):
    for command in (["run"], ["check"], ["data"], ["data", "info"]):
        assert "--traceback" in cswf.output(*command, "--help")


def test_a_cause_that_the_code_hides_is_shown(cswf, tmp_path):
    (tmp_path / "data.npz").write_bytes(b"junk")
    run = ("run", "digits", f"data={{use: npz, path: {tmp_path / 'data.npz'}}}", "--out", tmp_path / "out")
    assert "cannot be read as .npz" in cswf.refusal(*run)
    err = cswf("--traceback", *run).err
    assert err.count("Traceback (most recent call last):") >= 2
    assert "During handling of the above exception" in err
