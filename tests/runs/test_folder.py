"""A run's folder: refused, replaced, written whole; its log has every row once."""

from __future__ import annotations

import json
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from cswf_core.errors import RunError
from cswf_core.runs.durable import replacing, write_durably
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.record import MetricsLog


def test_what_a_run_leaves_is_removed_with_its_model(tmp_path):
    (tmp_path / "model").mkdir()
    for name in ("run.json", "model/model.json", "model/fitted.safetensors", "model/tables-0.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / "mine.txt").touch()
    RunFolder(tmp_path).clear()
    assert [path.name for path in tmp_path.rglob("*")] == ["mine.txt"]


def test_a_folder_with_something_in_it_is_refused_unless_forced(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "run.json").write_text("{}")
    folder = RunFolder(tmp_path)
    with pytest.raises(RunError, match="is not empty; give another --out, or --force"):
        folder.refuse_if_taken(force=False)
    folder.refuse_if_taken(force=True)
    folder.create(force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "run.json"}
    with pytest.raises(RunError, match="has been taken by another run"):
        folder.create(force=False)


@pytest.fixture
def outside(tmp_path):
    """A folder beside that of a run, with the files that a run has, which are another's."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in ("manifest.json", "model.json", "run.json", "samples.png", "tables-00000.safetensors"):
        (folder / name).write_text("mine")
    return folder


def untouched(folder) -> bool:
    """Whether all files of a folder say what they said."""
    return len(list(folder.iterdir())) == 5 and all(path.read_text() == "mine" for path in folder.iterdir())


def test_what_lies_behind_a_link_is_neither_removed_nor_written(tmp_path, outside):
    folder = RunFolder(tmp_path / "run")
    folder.make()
    for name in ("checkpoints", "model"):
        folder.file(name).symlink_to(outside)
    for name in ("run.json", "samples.png"):
        folder.file(name).symlink_to(outside / name)
    with pytest.raises(RunError, match="checkpoints is a link, and a run writes to its own folder only"):
        folder.refuse_links()
    folder.write("samples.png", b"new")
    assert not folder.file("samples.png").is_symlink()
    folder.create(force=True)
    folder.refuse_links()
    assert [path.name for path in folder.path.iterdir()] == ["run.json"]
    assert untouched(outside)


def test_a_log_that_is_a_link_or_a_pipe_is_refused(tmp_path, outside):
    folder = RunFolder(tmp_path)
    folder.file("metrics.jsonl").symlink_to(outside / "run.json")
    with pytest.raises(RunError, match=r"metrics\.jsonl cannot be written: it is a link"):
        folder.append("metrics.jsonl", "{}\n")
    folder.clear()
    os.mkfifo(folder.file("metrics.jsonl"))
    with pytest.raises(RunError, match=r"metrics\.jsonl cannot be written: "):
        folder.append("metrics.jsonl", "{}\n")
    assert untouched(outside)


def test_a_temporary_file_is_in_a_folder_that_is_new_and_nobody_else_s(tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    planted, victim = tmp_path / ".file.00000000.part", tmp_path / "victim"
    victim.mkdir()
    planted.symlink_to(victim)
    with pytest.raises(RunError, match="file cannot be written: File exists"):
        write_durably(tmp_path / "file", "content")
    assert not list(victim.iterdir())
    planted.unlink()
    with replacing(tmp_path / "file") as temporary:
        assert temporary.parent.stat().st_mode & 0o777 == 0o700
        temporary.write_text("content")


def test_a_file_or_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        RunFolder(tmp_path / "file").refuse_if_taken(force=True)
    with pytest.raises(RunError, match="cannot be written"):
        RunFolder(tmp_path / "file/below").create(force=False)


@pytest.mark.parametrize(
    ("error", "seen"),
    [(OSError(28, "No space left on device"), RunError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_a_write_that_breaks_off_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, error, seen):
    folder = RunFolder(tmp_path)
    folder.write("run.json", "old")
    monkeypatch.setattr("os.fsync", Mock(side_effect=error))
    with pytest.raises(seen):
        folder.write("run.json", "new")
    assert (tmp_path / "run.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_names_are_numbered_and_no_two_runs_get_one(tmp_path):
    runs = tmp_path / "runs"
    RunFolder.fresh(runs, "digits").withdraw()
    assert not runs.exists()  # nothing was written to it
    names = [RunFolder.fresh(runs, "digits").path.name for _ in range(3)]
    assert names == ["digits", "digits-2", "digits-3"]
    (runs / "digits-2").rmdir()
    assert RunFolder.fresh(runs, "digits").path.name == "digits-2"


def test_a_run_that_has_not_begun_takes_back_what_was_made_for_it_and_nothing_else(tmp_path):
    (tmp_path / "mine").mkdir()
    folder = RunFolder(tmp_path / "mine/a/b")
    folder.create(force=False)
    folder.write("recipe.yaml", "")
    folder.withdraw()
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]
    own = RunFolder(tmp_path / "mine")
    own.create(force=False)
    own.withdraw()
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]
    folder.create(force=False)
    folder.file("notes.txt").write_text("mine")
    folder.withdraw()
    assert [path.name for path in folder.path.iterdir()] == ["notes.txt"]
    folder.create(force=True)
    folder.write("run.json", "{}")
    folder.withdraw()
    assert folder.file("run.json").is_file()


def test_a_folder_in_a_folder_that_cannot_be_made_leaves_neither(tmp_path, monkeypatch):
    mkdir = Path.mkdir

    def full(path: Path, *arguments: object, **options: object) -> None:
        if path.name == "deep":
            raise OSError(28, "No space left on device")
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", full)
    folder = RunFolder(tmp_path / "a/b/deep")
    with pytest.raises(RunError, match="No space left"):
        folder.make()
    folder.withdraw()
    with pytest.raises(RunError, match="No space left"):
        RunFolder.fresh(tmp_path / "runs", "deep")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_left_soon_is_waited_for(tmp_path):
    with ExitStack() as other:
        other.enter_context(RunFolder(tmp_path).held())
        with pytest.raises(RunError, match="is in use"), RunFolder(tmp_path).held():
            pass
        threading.Timer(0.2, other.pop_all().close).start()
        with RunFolder(tmp_path).held(patience_s=30):
            pass


def test_a_row_that_was_written_after_the_checkpoint_that_has_it_is_not_there_twice(tmp_path):
    rows = [{"step": step, "stage": 0, "sliced_distance": 1.0} for step in (1, 10, 15)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = MetricsLog(RunFolder(tmp_path), every=10)
    log.recall({"unwritten": torch.tensor([15.0, 0.0, 0.5, 0.25, 2.0], dtype=torch.float64)}, 15)
    log.after_stage()
    written = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert written == [1, 10, 15]
    log.recall({}, 10)
    assert [row["step"] for row in log.folder.read_rows()] == [1, 10]
