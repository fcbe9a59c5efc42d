"""A model on disk is as its header says, or a sentence says what is wrong with it."""

from __future__ import annotations

import json
import shutil

import attrs
import pytest
import torch
import yaml
from safetensors import safe_open

import cswf_core.model.format
from cswf_core.errors import CswfError, RunError
from cswf_core.model import load_model
from cswf_core.model.format import FITTED, FORMAT, ModelHeader, pack_mask, saved_steps, unpack_mask
from cswf_core.model.requests import vectors_by_number
from cswf_core.runs.durable import find_damage, fingerprint, read_tensors, write_tensors
from tests.conftest import read_json
from tests.model.conftest import saving, write_header

SHARD = "tables-00000.safetensors"


def edit(folder, **changes) -> None:
    write_header(folder, {**read_json(folder / "model.json"), **changes})


def test_the_header_says_what_the_model_is(digits_model):
    said = read_json(digits_model / "model.json")
    assert said["format"] == FORMAT
    assert said["complete"] is True
    assert said["name"] == "digits"
    assert yaml.safe_load(said["recipe"])["schedule"]["steps"] == 6
    assert said["data"]["samples"] == 1797
    assert said["data"]["shape"] == [1, 8, 8]
    assert sum(said["data"]["counts"]) == 1797
    condition = {"length": 10, "asks": ["labels"], "tables": [*range(10)], "shared": True, "mask": None}
    assert said["condition"] == {**condition, "low": [], "high": []}
    assert said["tables"] == {"knots": 13, "bits": 4}
    assert said["steps"] == 6
    on_disk = sum(path.stat().st_size for path in digits_model.glob("*.safetensors"))
    assert said["cost"]["bytes"] == on_disk == sum(shard["bytes"] for shard in said["shards"])
    assert said["cost"]["seconds"] >= 0  # rounded: on a GPU, six steps take none
    assert 0 <= said["cost"]["share"] < 1


def test_a_shard_holds_a_table_of_each_direction_and_class_and_numbers_of_steps(digits_model):
    with safe_open(digits_model / SHARD, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert {name: (tuple(t.shape), t.dtype) for name, t in found.items()} == {
        "centre": ((6, 10, 128), torch.float32),
        "spans": ((6, 10, 128, 3), torch.uint8),
        "levels": ((6, 10, 128, 7), torch.uint8),
        "eta": ((6,), torch.float64),
        "steps": ((6,), torch.int64),
    }
    assert found["steps"].tolist() == list(range(6))


def test_shards_end_where_they_are_full_and_where_stages_end(tmp_path, monkeypatch):
    monkeypatch.setattr(cswf_core.model.format, "SHARD_BYTES", 3 * 10 * 40 * (4 + 3 + 7))
    grids = "schedule={use: pyramid, entries: ['(2×2) [2]', '(8×8) [8]'], steps: 4, directions: 40}"
    saving(tmp_path, "digits", grids, "projection={use: locally-connected, patch: 8}").run()
    header = ModelHeader.read(tmp_path / "model.json")
    assert [(shard.stage, shard.steps) for shard in header.shards] == [(0, 3), (0, 1), (1, 3), (1, 1)]
    assert [(step.stage, step.number) for step in saved_steps(tmp_path, load_model(tmp_path).header)] == [
        (stage, step) for stage in (0, 1) for step in range(4)
    ]


def test_a_model_is_found_by_its_run_its_folder_and_its_header(digits_model):
    run = digits_model.parent
    for path in (run, digits_model, digits_model / "model.json", str(run)):
        assert load_model(path).header.name == "digits"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda folder: shutil.rmtree(folder), "does not exist"),
        (lambda folder: (folder / "model.json").unlink(), "there is no model.json in it"),
        (lambda folder: (folder / "model.json").write_text("{"), "cannot be read as a model's header"),
        (lambda folder: (folder / "model.json").write_text("[]"), "does not say its format"),
        (lambda folder: edit(folder, format=7), "has format 7, and this version of cswf reads format 5"),
        (lambda folder: edit(folder, format=3), "reads format 5: .*; run the recipe again"),
        (lambda folder: edit(folder, plugins=None), "is damaged: plugins must be a list"),
        (lambda folder: edit(folder, data=3), "is damaged"),
        (lambda folder: edit(folder, surprise=3), "is damaged"),
        (lambda folder: edit(folder, complete=False), "is not complete: it has 30 steps"),
        (lambda folder: (folder / SHARD).unlink(), f"{SHARD} is missing"),
        (lambda folder: (folder / FITTED).unlink(), f"{FITTED} is missing"),
        (lambda folder: (folder / FITTED).write_bytes(b"short"), "has 5 bytes and should have"),
        (
            lambda folder: edit(folder, fitted={"file": "../a", "bytes": 1, "sha256": "0" * 64}),
            "name of a file in the same folder",
        ),
        (
            lambda folder: edit(
                folder, shards=[{**read_json(folder / "model.json")["shards"][0], "file": "../a.safetensors"}]
            ),
            "must be the name of a file in the same folder",
        ),
        (lambda folder: (folder / SHARD).write_bytes(b"short"), "has 5 bytes and should have"),
        (lambda folder: edit(folder, recipe="a: ["), "the recipe in it cannot be read"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence(made, said, whitened_model, copy_of):
    folder = copy_of(whitened_model)
    made(folder)
    with pytest.raises(RunError, match=said):
        load_model(folder)


def test_a_run_without_a_model_says_how_to_get_one_and_with_a_part_of_one_how_to_go_on(digits_model, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(RunError, match=r"a run saves one with model\.save=true"):
        load_model(tmp_path)
    shutil.copytree(digits_model, tmp_path / "model")
    edit(tmp_path / "model", complete=False)
    with pytest.raises(RunError, match=f"`cswf resume {tmp_path}` goes on"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", [SHARD, FITTED])
def test_a_changed_bit_is_found_by_its_checksum(name, whitened_model, copy_of):
    folder = copy_of(whitened_model)
    files = ModelHeader.read(folder / "model.json").files
    assert find_damage(folder, files) == []
    path = folder / name
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    (damage,) = find_damage(folder, files)
    assert "its checksum differs" in damage
    with pytest.raises(RunError, match=f"{name} is not what was written: its checksum differs"):
        load_model(folder)


def test_a_header_that_was_changed_is_refused_by_its_own_checksum(digits_model, copy_of):
    folder = copy_of(digits_model)
    path = folder / "model.json"
    path.write_text(path.read_text(encoding="utf-8").replace("seed: 0", "seed: 1"), encoding="utf-8")
    with pytest.raises(RunError, match="its own checksum differs"):
        load_model(folder)
    said = read_json(path)
    del said["sha256"]
    path.write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(RunError, match="it lacks its own checksum"):
        load_model(folder)


def test_what_was_fitted_to_the_data_is_a_file_of_its_own(whitened_model, digits_model):
    said = read_json(whitened_model / "model.json")
    path = whitened_model / said["fitted"]["file"]
    assert said["fitted"] == {"file": FITTED, "bytes": path.stat().st_size, "sha256": fingerprint(path)}
    assert said["cost"]["bytes"] == path.stat().st_size + sum(shard["bytes"] for shard in said["shards"])
    tensors, _ = read_tensors(path)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "W/colours": (1, 1),
        "W/variances": (64,),
        "gaussian/mean": (64, 11),  # of all, and of each digit
        "gaussian/root": (64, 64),
        "gaussian/samples": (),
    }
    assert read_json(digits_model / "model.json")["fitted"] is None


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("W/variances", "of_tensors raised KeyError: 'variances'"),
        ("gaussian/mean", "is damaged: it lacks the tensor 'mean'"),
        ("gaussian", "is damaged: it lacks the tensor 'mean'"),
        ("gaussian/samples", "is damaged: it lacks the tensor 'samples'"),
    ],
)
def test_a_file_that_lacks_a_part_of_what_was_fitted_is_refused(lost, said, whitened_model, copy_of):
    folder = copy_of(whitened_model)
    tensors, facts = read_tensors(folder / FITTED)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(lost)}
    write_tensors(folder / FITTED, kept, facts)
    fitted = {"file": FITTED, "bytes": (folder / FITTED).stat().st_size, "sha256": fingerprint(folder / FITTED)}
    edit(folder, fitted=fitted)
    with pytest.raises(CswfError, match=said):
        load_model(folder).sample(1, device="cpu")


def test_a_plugin_that_is_not_there_is_named_if_sampling_needs_it(digits_model, copy_of):
    folder = copy_of(digits_model)
    recipe = yaml.safe_load(read_json(folder / "model.json")["recipe"])
    edit(folder, recipe=yaml.safe_dump({**recipe, "projection": {"use": "mine"}}))
    with pytest.raises(RunError, match=r"cannot be followed here: .*mine"):
        load_model(folder)
    others = {"cdf": "mine", "observers": ["mine"], "evaluate": {"metrics": ["mine"]}}
    edit(folder, recipe=yaml.safe_dump({**recipe, **others}))
    assert len(load_model(folder).sample(2, device="cpu")) == 2


def test_a_mask_survives_as_text():
    mask = torch.tensor([False, True, True, False, False, True, False])
    assert torch.equal(unpack_mask(pack_mask(mask), 7), mask)
    assert pack_mask(torch.zeros(9, dtype=torch.bool)) == "000"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda said: said["stages"][0].update(fingerprint="zz"), "is damaged"),
        (lambda said: said.update(stages=[]), "is damaged: shards should be in the order of the 0 stages"),
        (lambda said: said["stages"][0].update(directions=300), "plans other stages than those of the model"),
    ],
)
def test_stages_that_do_not_fit_are_one_sentence(digits_model, copy_of, change, complaint):
    folder = copy_of(digits_model)
    said = read_json(folder / "model.json")
    change(said)
    write_header(folder, said)
    with pytest.raises(RunError, match=complaint):
        load_model(folder).sample(2, device="cpu")


def test_vectors_outside_of_the_data_s_are_told(digits_model, caplog):
    header = ModelHeader.read(digits_model / "model.json")
    facts = attrs.evolve(
        header.condition, asks=("vectors",), tables=None, length=2, low=(0.0, -1.0), high=(1.0, 1.0)
    )
    header = attrs.evolve(header, condition=facts)
    vectors_by_number(header, 3, [0.5, 0.0])
    assert not caplog.text
    vectors_by_number(header, 3, [0.5, 4.0])
    assert "number 2 of a vector is 4, and the data had -1 … 1" in caplog.text
