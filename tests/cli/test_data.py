"""`cswf data` packs what a recipe could name, says what a folder has, and finds damage."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
from PIL import Image

from cswf_core.packed import Manifest
from tests.conftest import Outcome, read_json
from tests.processes import wait_until

SMALL = ("particles.count=20", "schedule.steps=3", "schedule.directions=10", "outputs.frames=0")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("CSWF_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def test_a_run_from_packed_data_has_the_same_samples_to_the_bit(cswf, tmp_path):
    cswf.output("data", "pack", "digits", "shards", "classes=[3,8]", "--shard-size", "100")
    run = ("run", "digits", *SMALL, "--device", "cpu", "--quiet", "--out")
    assert cswf(*run, "a", "data.classes=[3,8]") == Outcome(0, "", "")
    assert cswf(*run, "b", "data={use: packed, path: shards}") == Outcome(0, "", "")
    one, other = (read_json(tmp_path / name / "run.json") for name in "ab")
    assert one["samples_sha256"] == other["samples_sha256"]
    assert one["data"]["sha256"] == other["data"]["sha256"]


def test_all_kinds_of_sources_are_packed(cswf, tmp_path):
    np.savez("some.npz", images=np.random.default_rng(0).integers(0, 256, (9, 3, 5, 6), np.uint8))
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (9, 9), (i, 7, 7)).save(tmp_path / "pictures" / name / f"{i}.png")
    (tmp_path / "my.yaml").write_text(
        "data: {use: image-folder, path: pictures, size: 8, held_out: 0.5, flips: true}\nseed: 3\n"
        "schedule: {use: constant, steps: 1, directions: 1}\n"
    )

    def pack(*arguments: str) -> Manifest:
        cswf.output("data", "pack", *arguments, "--force", "--quiet")
        return Manifest.read(tmp_path / arguments[1])

    assert pack("some.npz", "p").samples == 9
    assert pack("./pictures", "p", "size=4", "channels=1").shape == (1, 4, 4)
    assert pack("{use: digits, classes: [7]}", "p").classes == ("7",)
    by_recipe = pack("my.yaml", "q", "data.size=6")
    assert (by_recipe.shape, by_recipe.seed, by_recipe.classes) == ((3, 6, 6), 3, ("a", "b"))
    assert [split.samples for split in by_recipe.splits] == [4, 4]
    assert pack("my.yaml", "p", "--seed", "4").seed == 4
    again = pack("q", "r", "--shard-size", "1")
    assert (again.samples, len(again.splits[0].images), again.source["use"]) == (8, 4, "packed")
    told = cswf("data", "pack", "my.yaml", "p", "--force")
    assert told.err == "not in the shards: flips: true; write it beside `use: packed` in a recipe\n"


def test_mistakes_are_one_sentence(cswf, tmp_path):
    pack = ("data", "pack")
    assert "unknown dataset 'digit'; did you mean 'digits'?" in cswf.refusal(*pack, "digit", "p")
    assert "unknown key 'clases' of dataset 'digits'" in cswf.refusal(*pack, "digits", "p", "clases=[1]")
    assert "no/such does not exist; SOURCE is a data set, a recipe" in cswf.refusal(*pack, "no/such", "p")
    assert "missing key 'size' of dataset 'image-folder'" in cswf.refusal(*pack, str(tmp_path), "p")
    assert "SOURCE cannot be read as YAML" in cswf.refusal(*pack, "{use: [", "p")
    for size in ("0", "many", "-3", "0MB", "5 TB"):
        assert "--shard-size takes a number of images, or a size such as 64MB" in cswf.refusal(
            *pack, "digits", "p", f"--shard-size={size}"
        )
    points = ("{use: synthetic, shape: [2], count: 5}", "p")
    assert "dataset '{use" not in (said := cswf.refusal(*pack, *points))
    assert "dataset 'synthetic': samples in 2 dimensions are not images" in said
    assert "dequantise: step" in cswf.refusal(*pack, "{use: synthetic, shape: [1, 2, 2], count: 5}", "p")
    assert not (tmp_path / "p").exists()
    cswf.output(*pack, "digits", "p")
    assert "p has packed images already; give --force" in cswf.refusal(*pack, "digits", "p")
    assert "p is the source itself; name another" in cswf.refusal(*pack, "p", "p", "--force")
    assert "q does not exist" in cswf.refusal("data", "check", "q")
    assert "has no manifest.json" in cswf.refusal("data", "info", str(tmp_path))


def test_damage_is_found_by_check_file_by_file(cswf, tmp_path):
    cswf.output("data", "pack", "digits", "p", "--shard-size", "1000")
    assert json.loads(cswf.output("data", "info", "p", "--json"))["samples"] == 1797
    assert cswf.output("data", "check", "p") == "p: fine, all 3 files (0.1 MB) are as they were written\n"
    content = bytearray((tmp_path / "p/images-00001.npy").read_bytes())
    content[200] ^= 1
    (tmp_path / "p/images-00001.npy").write_bytes(content)
    (tmp_path / "p/labels.npy").unlink()
    done = cswf("data", "check", "p")
    assert (done.status, done.out) == (2, "")
    second, first = done.err.splitlines()
    assert first.startswith("p/labels.npy is missing; copy the folder again, or pack it anew")
    assert second.startswith("p/images-00001.npy is not what was written: its checksum differs; copy")


def test_a_pack_that_is_ended_leaves_no_manifest_and_can_be_called_again(cswf, apart, tmp_path):
    source = "{use: synthetic, shape: [1, 8, 8], count: 20000, dequantise: step}"
    pack = ("data", "pack", source, tmp_path / "p", "--shard-size", "1")
    with apart(*pack) as child:
        wait_until(lambda: (tmp_path / "p" / "images-00003.npy").exists(), seconds=60)
        os.kill(child.pid, signal.SIGINT)
        assert child.wait() == 130
    assert (tmp_path / "p" / "images-00003.npy").exists()
    assert not (tmp_path / "p" / "manifest.json").exists()
    assert not list((tmp_path / "p").glob(".*"))
    cswf.output("data", "pack", "digits", "p")
    assert cswf("data", "check", "p").status == 0
    assert len(list((tmp_path / "p").iterdir())) == 3
