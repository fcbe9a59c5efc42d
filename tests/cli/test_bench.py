"""`cswf bench`, as a person uses and misuses it."""

from __future__ import annotations

import json
import os
import pty

import pytest

from tests.conftest import read_json

SIZES = ("--particles", "30", "--data", "40", "--directions", "20", "--shape", "1x8x8", "--patch", "3")
EXACT = ("--cdf", "sorted", "--precision", "float32")
QUICK = ("--steps", "2", "--warmup", "1", "--device", "cpu")
SMALL = ("bench", *SIZES, *EXACT, *QUICK)


@pytest.fixture(autouse=True)
def _known_device(monkeypatch):
    """Not to measure the device anew for every command; tests of `measure_ceilings` do."""
    monkeypatch.setattr(
        "cswf_core.cli.bench.measure_ceilings", lambda _: {"copy_bandwidth": 1e9, "matrix_rate": 1e9}
    )


def test_a_table_of_parts_is_printed_and_every_figure_goes_into_a_file(cswf, tmp_path):
    done = cswf(*SMALL, "--out", tmp_path / "a.json")
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("random images on ")
    assert lines[1] == "M 30  N 40  H 20  d 1×8×8  stage (8×8) [3]  d_k 64"
    assert {"part", "whole"} <= {line.split(" ")[0] for line in lines}
    assert "a naive PyTorch step takes" in done.out
    found = read_json(tmp_path / "a.json")
    assert found["sizes"]["particles"] == 30
    assert found["sizes"]["stage_dimension"] == 64
    assert found["speedup"] == pytest.approx(found["naive_ms"] / found["step_ms"])
    assert len(found["step_ms_all"]) == 2
    assert sum(part["ms"] for part in found["parts"].values()) > 0
    for part in (*found["parts"].values(), found["step"]):
        assert part["bandwidth_fraction"] == pytest.approx(
            part["bytes"] / part["ms"] * 1e3 / found["copy_bandwidth"]
        )
        assert part["matrix_fraction"] == pytest.approx(part["flops"] / part["ms"] * 1e3 / found["matrix_rate"])
    assert found["peak_memory_bytes"] > 0
    assert found["command"].startswith("cswf bench --particles 30 ")
    assert {"torch", "triton", "cuda"} <= set(found["versions"])


@pytest.mark.slow
def test_a_terminal_shows_what_is_being_timed(apart):
    master, terminal = pty.openpty()
    try:
        done = apart.completed(*SMALL, environment={"TERM": "xterm"}, stderr=terminal)
        shown = os.read(master, 1 << 16).decode()
    finally:
        os.close(master)
        os.close(terminal)
    assert "timing naive steps" in shown
    assert done.stdout.startswith("random images on ")


def test_the_engine_s_own_defaults_can_be_timed_with_values_changed_and_no_naive_step_to_compare(cswf):
    changes = ("data.dequantise=step", "seed=7", "--classes", "3", "--no-naive")
    found = json.loads(cswf.output("bench", *SIZES, *QUICK, *changes, "--json"))
    assert found["cdf"] == "histogram"
    assert found["naive_ms"] is found["speedup"] is None


def test_sizes_nobody_gave_are_smaller_on_a_cpu_and_that_is_said(cswf):
    printed = cswf.output(
        "bench", *EXACT, *QUICK, "--directions", "10", "--particles", "50", "--data", "50", "--no-naive"
    )
    assert "smaller by default on a CPU: shape 3×16×16" in printed


def test_a_recipe_is_timed_with_its_own_data_and_changes(cswf):
    changes = ("schedule.directions=20", "particles.count=30", "data.classes=[1, 2]")
    printed = cswf.output("bench", "digits", *changes, *EXACT, *QUICK, "--stage", "1", "--no-naive", "--json")
    found = json.loads(printed)
    assert found["recipe"] == "digits"
    assert found["sizes"]["shape"] == [1, 8, 8]
    assert (found["sizes"]["particles"], found["sizes"]["directions"]) == (30, 20)
    assert found["sizes"]["condition_length"] == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--shape", "3x32"), "shape '3x32' must be CxHxW as in 3x32x32, or one number for points"),
        (("--shape", "0x8x8"), "shape '0x8x8' must be CxHxW"),
        (("--resolution", "8x8x8"), "resolution '8x8x8' must be one number"),
        (("--resolution", "64"), "a resolution of 64×64 is larger than the images, 3×16×16"),
        (("--shape", "64", "--resolution", "8"), "points in 64 dimensions have no resolution"),
        (("--projection", "uniform", "--resolution", "4"), "projection 'uniform' has no patches"),
        (("--device", "tpu"), "there is no device 'tpu'"),
        (("--cdf", "nope"), "unknown cdf 'nope'"),
        (("--stage", "2"), "--stage is for a recipe's stages"),
        (("digits", "--stage", "2"), "there is no stage 2: the schedule has 1"),
        (("digits", "--patch", "3"), "--patch is for random data, and 'digits' has its own"),
        (("digit",), "'digit'"),
        (("--out", "no-such-folder/a.json"), "--out no-such-folder/a.json cannot be written"),
    ],
)
def test_nonsense_is_one_sentence_and_status_2(cswf, arguments, complaint):
    exact = () if "--cdf" in arguments else ("--cdf", "sorted")
    done = cswf("bench", *exact, "--precision", "float32", *arguments)
    assert done.status == 2
    assert complaint in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert done.out == ""
