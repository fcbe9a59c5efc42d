"""Checkpoints: two are kept, the newest good one is found, what is damaged is said; signals wait for one."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import threading

import attrs
import pytest
import torch

from cswf_core.errors import NotFiniteError, OtherFormatError, RunError, Terminated
from cswf_core.runs import checkpoints, durable
from cswf_core.runs.checkpoints import SIGNALS, CheckpointFolder, Checkpoints, Interval, Stopping
from cswf_core.runs.durable import FileEntry, write_tensors
from cswf_plugins.schedules.constant import Constant
from tests.conftest import read_json, small_flow


def facts(step: int) -> dict:
    return {"position": {"total": step}, "habits": {}, "directions": {}}


STEP = "step-{:08}-stage-0000.safetensors"


@pytest.fixture
def folder(tmp_path) -> CheckpointFolder:
    """A folder with the checkpoints of steps 10, 20 and 30, of which two are left."""
    found = CheckpointFolder(tmp_path / "checkpoints")
    for step in (10, 20, 30):
        found.write(
            (step, 0), {"flow/x": torch.full((3, 4), float(step))}, {**facts(step), "word": f"after {step}"}
        )
    return found


def newest(folder: CheckpointFolder) -> tuple[int | None, list[str]]:
    lost: list[str] = []
    found = next(folder.newest_first(lost), None)
    return None if found is None else found.step, lost


def names(folder: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir())


def test_two_are_kept_the_newest_first_and_going_on_from_an_earlier_one_drops_the_later(folder):
    assert names(folder) == ["manifest.json", STEP.format(20), STEP.format(30)]
    found = next(folder.newest_first([]))
    assert (found.step, found.facts["word"]) == (30, "after 30")
    assert torch.equal(found.part("flow")["x"], torch.full((3, 4), 30.0))
    folder.write((25, 0), {"flow/x": torch.zeros(1)}, facts(25))
    assert names(folder) == ["manifest.json", STEP.format(20), STEP.format(25)]


def test_of_a_run_that_is_done_the_newest_is_enough(folder):
    folder.keep_newest()
    assert names(folder) == ["manifest.json", STEP.format(30)]
    assert newest(folder) == (30, [])
    (folder.path / STEP.format(20)).touch()  # as a kill leaves it right after the manifest is written
    folder.keep_newest()
    assert names(folder) == ["manifest.json", STEP.format(30)]
    empty = CheckpointFolder(folder.path / "nowhere")
    empty.keep_newest()
    assert newest(empty) == (None, [])
    empty.path.mkdir()
    assert newest(empty) == (None, [])


def truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


def edit(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncate, "bytes and should have"),
        (edit, "is not what was written: its checksum differs"),
        (lambda path: path.unlink(), "is missing"),
    ],
)
def test_of_a_damaged_one_the_one_before_is_used_and_the_damage_is_said(folder, damage, said):
    for broken, left in (([30], 20), ([30, 20], None)):
        damage(folder.path / STEP.format(broken[-1]))
        step, lost = newest(folder)
        assert step == left
        pairs = zip(broken, lost, strict=True)
        assert all(f"step-{number:08}" in sentence and said in sentence for number, sentence in pairs)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 1, "checkpoints": [{"file": "../x", "step": 1}]}',
        '{"checkpoints": [{"step": 1}]}',
    ],
)
def test_without_a_good_manifest_checkpoints_are_refused(folder, text):
    (folder.path / "manifest.json").write_text(text)
    with pytest.raises(RunError, match=r"nothing says whether the checkpoints .* to begin anew"):
        newest(folder)
    folder.write((35, 0), {"flow/x": torch.zeros(1)}, facts(35))
    assert newest(folder) == (35, [])


def test_a_file_that_is_not_the_checkpoint_of_the_step_listed_is_not_taken(folder):
    manifest = read_json(folder.path / "manifest.json")
    newest_entry = manifest["checkpoints"][0]
    newest_entry["step"] = 31
    (folder.path / "manifest.json").write_text(json.dumps(manifest))
    step, lost = newest(folder)
    assert step == 20
    assert "is of step 30, and listed as that of 31" in lost[0]
    write_tensors(folder.path / STEP.format(30), {"x": torch.zeros(1)}, {"format": 2})
    newest_entry |= attrs.asdict(FileEntry.of(folder.path / STEP.format(30)))
    (folder.path / "manifest.json").write_text(json.dumps(manifest))
    step, lost = newest(folder)
    assert step == 20
    assert lost[0].endswith("is no checkpoint of ours: it lacks 'position'")


def test_a_kill_before_the_first_manifest_leaves_nothing_that_is_refused(folder, tmp_path, monkeypatch):
    other = CheckpointFolder(tmp_path / "other")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_tensors", killed)
        with pytest.raises(KeyboardInterrupt):
            other.write((1, 0), {"flow/x": torch.zeros(1)}, facts(1))
    write_tensors(other.path / STEP.format(1), {"flow/x": torch.zeros(1)}, {"format": 2, **facts(1)})
    assert newest(other) == (None, [])


def test_another_format_is_refused_with_both_versions(folder, monkeypatch):
    monkeypatch.setattr(checkpoints, "FORMAT", 3)
    with pytest.raises(OtherFormatError, match=r"has format 2, and this version .* reads format 3: resume"):
        newest(folder)


def test_the_end_of_a_stage_does_not_take_the_place_of_its_last_step(folder):
    before = names(folder)
    folder.write((30, 1), {"flow/x": torch.zeros(1)}, facts(30))
    assert set(before) & set(names(folder)) == {"manifest.json", STEP.format(30)}
    truncate(folder.path / "step-00000030-stage-0001.safetensors")
    assert newest(folder)[0] == 30


def test_files_have_the_rights_that_new_files_have(folder):
    (folder.path / "other").touch()
    modes = {path.stat().st_mode for path in folder.path.iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize("when", ["write", "sync", "manifest"])
def test_a_full_disk_leaves_the_checkpoints_before(folder, when, monkeypatch):
    """As the system reports it: at the write, at the sync, or for the manifest only."""

    def full(*arguments, **_):
        raise OSError(28, "No space left on device")

    def full_manifest(path, content):
        with durable.replacing(path):
            full()

    patched = {
        "write": ("safetensors.torch.save_file", full),
        "sync": (durable, "_sync", full),
        "manifest": (checkpoints, "write_durably", full_manifest),
    }
    monkeypatch.setattr(*patched[when])
    with pytest.raises(RunError, match="No space left on device"):
        folder.write((40, 0), {"flow/x": torch.zeros(3)}, facts(40))
    monkeypatch.undo()
    assert newest(folder) == (30, [])
    assert all(name[0] != "." for name in names(folder))


def test_a_flow_goes_on_if_a_checkpoint_cannot_be_written(tmp_path, monkeypatch, caplog):
    watching = Checkpoints(CheckpointFolder(tmp_path / "c"), Interval(steps=1), (), dict)
    flow = small_flow(observers=(watching,))
    steps = iter(flow)
    next(steps)

    def full(*_):
        raise RunError("the disk is full")

    monkeypatch.setattr(CheckpointFolder, "write", full)
    with caplog.at_level(logging.WARNING, logger="cswf"):
        next(steps)
    assert caplog.messages == ["no checkpoint at step 2: the disk is full; the one of step 1 stays"]
    monkeypatch.undo()
    flow.run()
    assert newest(watching.folder) == (3, [])


@pytest.mark.parametrize(
    ("every", "steps"), [(Interval(steps=2), [2, 3]), (Interval(seconds=0.0), [1, 2, 3]), (Interval(), [])]
)
def test_checkpoints_come_when_they_are_due_and_at_the_end(tmp_path, every, steps, monkeypatch):
    written = []
    write = CheckpointFolder.write
    monkeypatch.setattr(
        CheckpointFolder, "write", lambda self, at, *a: written.append(at[0]) or write(self, at, *a)
    )
    watching = Checkpoints(CheckpointFolder(tmp_path / "c"), every, (), dict)
    small_flow(observers=(watching,)).run()
    assert sorted(set(written)) == steps


def test_stage_ends_are_saved_only_while_that_is_cheap(tmp_path, monkeypatch):
    watching = Checkpoints(CheckpointFolder(tmp_path / "c"), Interval(seconds=1e9), (), dict)
    flow = small_flow(observers=(watching,))
    monkeypatch.setattr(checkpoints, "SHARE", -1.0)
    watching.after_stage(flow)
    assert not (tmp_path / "c").exists()
    monkeypatch.undo()
    watching.after_stage(flow)
    assert read_json(tmp_path / "c/manifest.json")["checkpoints"][0]["step"] == 0


INTERVALS = {
    "500": Interval(steps=500),
    "30s": Interval(seconds=30.0),
    "10min": Interval(seconds=600.0),
    "1.5h": Interval(seconds=5400.0),
    "never": Interval(),
}


def test_an_interval_is_steps_or_time_and_is_written_back():
    for text, interval in INTERVALS.items():
        assert Interval.from_text(text) == interval
        assert str(Interval.from_text(text)) == text
    for text in ("", "0", "0s", "1.5", "-3", "10 minutes", "min", "1e3"):
        with pytest.raises(ValueError, match="is not a number of steps such as 500, a time such as 30s"):
            Interval.from_text(text)


@pytest.fixture
def handlers():
    """SIGTERM and SIGHUP as the commands have them, and SIGINT as Python has; all as before in the end."""

    def terminate(number, _):
        raise Terminated(number)

    before = [(number, signal.getsignal(number)) for number in SIGNALS]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, terminate)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated), (signal.SIGHUP, Terminated)],
)
def test_a_flow_is_saved_before_a_signal_ends_it(handlers, tmp_path, number, error):
    watching = Checkpoints(CheckpointFolder(tmp_path / "c"), Interval(seconds=1e9), (), dict)
    flow = small_flow(observers=(watching,))
    steps = iter(flow)
    next(steps)

    def stopped() -> None:
        with watching.stopping.patient():
            os.kill(os.getpid(), number)
            flow.run()

    with pytest.raises(error) as ended:
        stopped()
    assert watching.step == flow.position.total == 2
    assert getattr(ended.value, "exit_status", 130) == 128 + number


@pytest.mark.parametrize(
    ("signals", "taken", "status"),
    [
        ((signal.SIGTERM,), 1, 143),  # the last step has been taken: it ends the run too
        ((signal.SIGHUP, signal.SIGHUP), 2, 129),
        ((signal.SIGINT, signal.SIGINT), 1, 130),
    ],
)
def test_a_signal_waits_and_a_second_does_not_but_for_a_sighup(handlers, signals, taken, status):
    reached = []

    def stopped() -> None:
        with Stopping().patient():
            for number in signals:
                os.kill(os.getpid(), number)
                reached.append(number)

    with pytest.raises(KeyboardInterrupt) as ended:
        stopped()
    assert len(reached) == taken
    assert getattr(ended.value, "exit_status", 130) == status


def test_a_checkpoint_of_particles_that_are_none_is_not_written_and_the_one_before_stays(tmp_path):
    folder = CheckpointFolder(tmp_path / "c")
    watching = Checkpoints(folder, Interval(steps=2), (), dict)
    flow = small_flow(schedule=Constant(steps=9, directions=40), observers=(watching,))
    steps = iter(flow)
    for _ in range(3):
        next(steps)
    flow.particles.stored[0].x[0, 0] = math.inf
    with pytest.raises(NotFiniteError, match="particles are not finite after step 3"):
        watching.save(flow)
    (good,) = folder.newest_first([])
    assert good.step == 2


def test_handlers_are_what_they_were_afterwards_and_threads_change_none(handlers):
    before = signal.getsignal(signal.SIGTERM)
    with Stopping().patient():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
    found = []

    def inside():
        with Stopping().patient():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [before]
