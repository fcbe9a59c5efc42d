"""A folder of shards has the samples of one call, whoever wrote them, however often that was interrupted."""

from __future__ import annotations

import hashlib
import threading

import numpy as np
import pytest
import torch

from cswf_core.errors import RunError
from cswf_core.interfaces.draw import Key
from cswf_core.model import load_model, sampling, shards
from cswf_core.model.format import read_shard, saved_steps
from cswf_core.model.requests import labels_by_number
from cswf_core.model.shards import ShardJob, write_shards
from tests.conftest import read_json
from tests.model.conftest import saving

COUNT = 600


@pytest.fixture(scope="module")
def model(digits_model):
    return load_model(digits_model)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(shards, "SAMPLES_PER_SHARD", 256)


@pytest.fixture(scope="module")
def whole(model):
    return model.sample(COUNT, seed=3, device="cpu")


def found(folder):
    """The images and labels of all shards."""
    parts = [np.load(path) for path in sorted(folder.glob("samples-*.npz"))]
    return tuple(np.concatenate([part[name] for part in parts]) for name in ("images", "labels"))


def draw(model, folder, force=False, tell=None, **more):
    job = ShardJob(count=COUNT, **{"seed": 3, "device": "cpu", **more})
    write_shards(model, folder, job, force=force, tell=tell)


def test_shards_have_the_samples_of_one_call_and_a_manifest_their_checksums(model, whole, tmp_path):
    draw(model, tmp_path)
    images, labels = found(tmp_path)
    assert (images == whole.images().numpy()).all()
    assert (labels == whole.conditions.labels.numpy()).all()
    manifest = read_json(tmp_path / "manifest.json")
    assert (manifest["count"], manifest["seed"], manifest["device"]) == (COUNT, 3, "cpu")
    header = (model.folder / "model.json").read_bytes()
    assert manifest["model"] == hashlib.sha256(header).hexdigest()
    assert [entry["samples"] for entry in manifest["shards"]] == [256, 256, 88]
    for entry in manifest["shards"]:
        content = (tmp_path / entry["file"]).read_bytes()
        assert (entry["bytes"], entry["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_call_that_was_interrupted_goes_on_with_the_missing_shards(model, whole, tmp_path, monkeypatch):
    def stop(work, done, total):
        if done > 0 and (tmp_path / "samples-00000.npz").is_file():
            raise KeyboardInterrupt

    monkeypatch.setitem(sampling.BYTES_AT_ONCE, "cpu", 256 * 64 * 32)  # as many as a shard has
    with pytest.raises(KeyboardInterrupt):
        draw(model, tmp_path, tell=stop)
    assert [path.name for path in tmp_path.glob("*.npz")] == ["samples-00000.npz"]
    assert not (tmp_path / "manifest.json").exists()
    before = (tmp_path / "samples-00000.npz").stat().st_mtime_ns
    asked = []
    drawn = sampling.SavedFlow.drawn
    monkeypatch.setattr(
        sampling.SavedFlow,
        "drawn",
        lambda flow, r, firsts, _: asked.extend(firsts) or drawn(flow, r, firsts),
    )
    draw(model, tmp_path)
    assert asked == [256, 512]
    assert (tmp_path / "samples-00000.npz").stat().st_mtime_ns == before
    assert (found(tmp_path)[0] == whole.images().numpy()).all()
    asked.clear()
    draw(model, tmp_path)
    assert asked == []


def test_processes_share_the_shards_and_the_first_waits_for_the_others(model, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "PAUSE_S", 0.01)
    first = threading.Thread(target=draw, args=(model, tmp_path), kwargs={"processes": 2})
    first.start()
    try:
        draw(model, tmp_path, rank=1, processes=2)
    finally:
        first.join(60)
    assert not first.is_alive()
    assert len(read_json(tmp_path / "manifest.json")["shards"]) == 3
    assert (found(tmp_path)[0] == whole.images().numpy()).all()


def test_a_rank_is_one_of_the_processes():
    with pytest.raises(RunError, match="process 3 of 3"):
        ShardJob(count=1, rank=3, processes=3)


def test_a_folder_with_shards_of_another_request_is_refused_and_replaced_by_force(model, tmp_path):
    draw(model, tmp_path)
    before = (tmp_path / "samples-00000.npz").read_bytes()
    for changed, said in (
        ({"seed": 4}, "its seed is 3, and 4 is asked for"),
        ({"labels": "7"}, "its labels is None, and 7 is asked for"),
    ):
        with pytest.raises(
            RunError, match=f"shards of another request: {said}; give another --out, or --force"
        ):
            draw(model, tmp_path, **changed)
    assert (tmp_path / "samples-00000.npz").read_bytes() == before
    draw(model, tmp_path, seed=4, force=True)
    assert (tmp_path / "samples-00000.npz").read_bytes() != before
    with pytest.raises(RunError, match="other processes are writing"):
        draw(model, tmp_path, processes=2, force=True)


def test_a_folder_with_other_things_in_it_is_left_alone(model, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match="is not empty, and has no shards"):
        draw(model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_points_go_to_shards_too(tmp_path):
    saving(tmp_path / "model", "toy-cswf", "schedule.steps=4").run()
    model = load_model(tmp_path / "model")
    write_shards(model, tmp_path / "shards", ShardJob(count=300, vectors=[0.5], device="cpu"))
    parts = [np.load(path)["points"] for path in sorted((tmp_path / "shards").glob("*.npz"))]
    assert [len(part) for part in parts] == [256, 44]
    whole = model.sample(300, vectors=[0.5], device="cpu")
    assert (np.concatenate(parts) == whole.points().numpy()).all()


@pytest.mark.parametrize("asked", [None, "3", {"1": 700, "7": 299, 3: 1}, list(range(10)) * 100])
def test_labels_of_some_samples_are_those_among_all(asked, model):
    index = (Key(1, "some").open().uniform(50) * 1000).long()
    whole = labels_by_number(model.header, 1000, asked, seed=5)(torch.arange(1000))
    assert torch.equal(labels_by_number(model.header, 1000, asked, seed=5)(index), whole[index])
    assert len(whole) == 1000


def test_steps_of_shards_come_in_order_and_one_of_a_damaged_shard_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("cswf_core.model.format.SHARD_BYTES", 2 * 10 * 128 * (4 + 3 + 7))
    saving(tmp_path, "digits").run()
    model = load_model(tmp_path)
    assert len(model.header.shards) == 3
    each = [step for shard in model.header.shards for step in read_shard(tmp_path / shard.file)]
    for one, other in zip(saved_steps(tmp_path, model.header), each, strict=True):
        assert (one.stage, one.number, one.eta) == (other.stage, other.number, other.eta)
        assert all(map(torch.equal, one.tables.tensors, other.tables.tensors))
    (tmp_path / "tables-00001.safetensors").write_bytes(b"no tables")
    with pytest.raises(RunError, match=r"tables-00001.safetensors cannot be read \("):
        list(saved_steps(tmp_path, model.header))
