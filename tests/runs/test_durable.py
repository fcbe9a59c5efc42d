"""Files that are whole or not there: what a killed writer leaves is removed, a living one is left alone."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
import torch

from cswf_core.errors import RunError
from cswf_core.runs import durable
from cswf_core.runs.durable import read_tensors, remove_parts, replacing, write_durably, write_tensors
from tests.runs.unfinished import leave_unfinished


def test_the_next_writer_of_a_file_removes_what_a_killed_one_has_left(tmp_path):
    for name in ("report[1].html", "other.html"):
        leave_unfinished(tmp_path / name)
    write_durably(tmp_path / "report[1].html", "whole")
    assert [path.name.rpartition(".html")[0] for path in tmp_path.glob(".*")] == [".other"]
    remove_parts(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"report[1].html"}


def test_nothing_is_removed_that_no_writer_of_ours_has_left(tmp_path):
    for name in (".film.mkv.part", ".file.my.part", ".file.0a1b2c3d.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").touch()
    (tmp_path / ".file.0a1b2c3d.part/lock").touch()
    (tmp_path / ".paper.0a1b2c3d.part").touch()
    (tmp_path / ".link.0a1b2c3d.part").symlink_to(tmp_path / ".film.mkv.part")
    (tmp_path / ".film.mkv.part/lock").touch()
    before = {path for path in tmp_path.rglob("*") if path != tmp_path / ".file.0a1b2c3d.part/lock"}
    write_durably(tmp_path / "file", "content")
    remove_parts(tmp_path)
    assert {*tmp_path.rglob("*")} >= before


@pytest.mark.parametrize("when", ["written", "unlocked"])
def test_a_writer_of_tensors_is_not_taken_for_a_killed_one(tmp_path, monkeypatch, when):
    """Neither after safetensors has put a file of its own in the place of ours, nor before we hold the lock."""
    module, name = {"written": (durable, "_sync"), "unlocked": (fcntl, "flock")}[when]
    original, calls = getattr(module, name), []

    def meanwhile(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            remove_parts(tmp_path)  # as another process does
        return original(*arguments)

    monkeypatch.setattr(module, name, meanwhile)
    write_tensors(tmp_path / "tensors", {"x": torch.ones(2)})
    assert torch.equal(read_tensors(tmp_path / "tensors")[0]["x"], torch.ones(2))
    assert [path.name for path in tmp_path.iterdir()] == ["tensors"]


def test_two_writers_of_one_file_leave_each_other_alone(tmp_path):
    target = tmp_path / "file"
    with replacing(target) as slow:
        slow.write_text("slow")
        write_durably(target, "quick")
        remove_parts(tmp_path)
        assert target.read_text() == "quick"
    assert target.read_text() == "slow"
    assert list(tmp_path.iterdir()) == [target]


def test_a_second_signal_leaves_nothing_either(tmp_path, monkeypatch):
    unlink = Path.unlink
    interruptions = [KeyboardInterrupt]

    def interrupted(path: Path, **options: bool) -> None:
        if interruptions:
            raise interruptions.pop()
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "file"):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(RunError, match="cannot be written: No such file or directory"):
        write_durably(tmp_path / "nowhere/file", "text")
