"""A run's folder: refused, replaced, written whole."""

from __future__ import annotations

import pytest

from cswf_core.errors import RunError
from cswf_core.runs.folder import RunFolder


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

    def broken(*arguments):
        raise error

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(seen):
        folder.write("run.json", "new")
    assert (tmp_path / "run.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_names_are_numbered_and_no_two_runs_get_one(tmp_path):
    names = [RunFolder.fresh(tmp_path / "runs", "digits").path.name for _ in range(3)]
    assert names == ["digits", "digits-2", "digits-3"]
    RunFolder(tmp_path / "runs/digits-2").remove_if_empty()
    assert RunFolder.fresh(tmp_path / "runs", "digits").path.name == "digits-2"


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
    folder.write("run.json", "{}")
    folder.withdraw()
    assert folder.file("run.json").is_file()


def test_a_folder_under_runs_that_nothing_was_written_to_leaves_no_runs(tmp_path):
    RunFolder.fresh(tmp_path / "runs", "digits").remove_if_empty()
    assert not (tmp_path / "runs").exists()
