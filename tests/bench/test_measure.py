"""What is measured adds up, and what is asked for is what is measured."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.bench import measure as measuring
from cswf_core.bench.measure import (
    Ceilings,
    Effort,
    durations,
    measure,
    measure_ceilings,
    only_stage,
    with_naive,
)
from cswf_core.bench.report import SweepRow, as_json, as_text, ordered, sweep_as_json, sweep_as_text
from cswf_core.bench.request import BenchRequest, parse_resolution, parse_shape, sweep
from cswf_core.bench.stopwatch import PartCost
from cswf_core.errors import RunError
from cswf_core.flow.clock import Clock
from cswf_core.interfaces import Space
from cswf_core.recipe import load_recipe

CPU = torch.device("cpu")
SMALL = BenchRequest(
    particles=30, data=40, directions=20, shape=(3, 8, 8), patch=3, cdf="sorted", precision="float32"
)
EFFORT = Effort(steps=2, warmup=1)
CEILINGS = Ceilings(copy_bandwidth=1e9, matrix_rate=1e9)


@pytest.fixture(scope="module")
def result(registry):
    """A small measurement, once for all tests."""
    return with_naive(measure(SMALL.load(CPU, registry), None, EFFORT, CPU, CEILINGS), CPU)


def test_sizes_are_those_asked_for_and_every_part_of_a_step_has_its_time_and_its_work(result):
    wanted = {"particles": 30, "data": 40, "directions": 20, "shape": [3, 8, 8], "patch": 3, "classes": 0}
    assert {key: result.sizes[key] for key in wanted} == wanted
    assert (result.sizes["dimension"], result.sizes["stage_dimension"]) == (192, 192)
    assert result.stage == "(8×8) [3]"
    assert len(result.step_ms_all) == 2
    assert min(result.step_ms_all) > 0
    assert result.speedup == pytest.approx(result.naive_ms / result.step_ms)
    assert result.peak_memory_bytes > 0
    assert {"draw", "project", "back-project"} <= set(result.parts)
    assert sum(share.milliseconds for share in result.parts.values()) > 0
    assert result.parts["project"].flops > 0
    assert result.parts["project"].bytes > 0
    assert result.choices["products"] == "float32"


def test_bytes_are_those_of_the_sizes(registry):
    recipe = attrs.evolve(SMALL, cdf="histogram").load(CPU, registry)
    parts = measure(recipe, None, EFFORT, CPU, CEILINGS).parts
    M, N, H, d, B = 30, 40, 20, 192, 512
    assert parts["draw"].bytes == 4 * H * d
    assert parts["move"].bytes == 3 * 4 * d * M
    assert parts["count"].bytes == 4 * H * (M + N)
    assert parts["tables"].bytes == 2 * (4 * H * (B + 1) + 8 * H) + 8 * H * (B + 1)
    assert parts["lookup"].bytes == 8 * H * M


def test_the_stopwatch_is_taken_out_of_the_flow_again(registry, monkeypatch):
    built = []
    build = measuring.build_flow
    monkeypatch.setattr(measuring, "build_flow", lambda *a, **k: built.append(build(*a, **k)) or built[-1])
    measure(SMALL.load(CPU, registry), None, EFFORT, CPU, CEILINGS)
    assert type(built[0].clock) is Clock


def test_coarse_stages_and_classes_are_measured_in_their_own_dimensions(registry):
    request = attrs.evolve(SMALL, resolution=(4, 4), classes=5)
    found = measure(request.load(CPU, registry), None, EFFORT, CPU, CEILINGS)
    assert (found.sizes["dimension"], found.sizes["stage_dimension"]) == (192, 48)
    assert found.sizes["condition_length"] == 5
    assert found.choices["condition"] == "one-hot"


@pytest.mark.parametrize(("shape", "projection"), [((5,), None), ((1, 4, 4), "uniform")])
def test_points_and_projections_without_patches_are_measured_too(shape, projection, registry):
    request = attrs.evolve(SMALL, shape=shape, projection=projection)
    found = measure(request.load(CPU, registry), None, EFFORT, CPU, CEILINGS)
    assert found.choices["projection"] == "uniform"
    assert found.sizes["stage_dimension"] == Space(shape).dimension


def test_options_change_a_named_recipe_and_overrides_come_last(registry):
    request = BenchRequest(recipe="digits", overrides=("schedule.directions=9",), particles=11, directions=8)
    recipe = request.load(CPU, registry)
    assert recipe.particles.count == 11
    assert recipe.schedule.part.directions == 9
    with pytest.raises(RunError, match="--shape is for random data, and 'digits' has its own"):
        attrs.evolve(request, shape=(1, 8, 8)).load(CPU, registry)


def test_one_stage_of_a_pyramid_is_taken_with_its_first_step_size(registry):
    recipe = load_recipe("mnist-unconditional", registry=registry)
    space, projection = Space((1, 28, 28)), recipe.projection.part
    every = recipe.schedule.part.stages(space, projection)
    for number, expected in ((None, every[-1]), (1, every[0]), (3, every[2])):
        (stage,) = only_stage(recipe, number, 1000).schedule.part.stages(space, projection)
        assert (stage.name, stage.directions) == (expected.name, expected.directions)
        assert stage.sampler == expected.sampler
        assert stage.steps == 1000
        assert stage.eta(999) == expected.eta(0)
    with pytest.raises(RunError, match=f"there is no stage 99: the schedule has {len(every)}, counted from 1"):
        only_stage(recipe, 99, 1).schedule.part.stages(space, projection)


def test_cpu_defaults_are_named_unless_everything_is_given():
    assert "particles 2,000" in BenchRequest().note(CPU)
    assert "shape 3×16×16" in BenchRequest(particles=5).note(CPU)
    assert "particles" not in BenchRequest(particles=5).note(CPU)
    assert SMALL.note(CPU) == ""
    assert BenchRequest(recipe="digits").note(CPU) == ""
    assert BenchRequest().note(torch.device("cuda")) == ""


def test_ceilings_are_measured_and_fractions_are_relative_to_them():
    found = measure_ceilings(CPU)
    assert found.copy_bandwidth > 1e8
    assert found.matrix_rate > 1e8
    assert CEILINGS.bandwidth_fraction(5e8, 1000) == pytest.approx(0.5)
    assert CEILINGS.matrix_fraction(1e6, 10) == pytest.approx(0.1)
    assert CEILINGS.matrix_fraction(1e6, 0) == 0


def test_durations_are_one_for_each_call():
    calls = []
    assert len(durations(CPU, lambda: calls.append(1), 4)) == len(calls) == 4
    assert durations(CPU, lambda: calls.append(1), 0) == []


def test_json_has_every_field_and_its_fractions_fit_the_ceilings(result):
    timed = attrs.evolve(result, parts={"project": PartCost(2.0, 4e6, 6e6), "draw": PartCost(1.0, 1e6, 0.0)})
    found = as_json(timed, "cswf bench")
    assert list(found["parts"]) == ["draw", "project"]
    fractions = {"bandwidth_fraction": pytest.approx(2.0), "matrix_fraction": pytest.approx(3.0)}
    assert found["parts"]["project"] == {"ms": 2.0, "bytes": 4e6, "flops": 6e6, **fractions}
    assert found["step"]["bytes"] == 5e6
    assert found["step"]["ms"] == found["step_ms"]
    assert found["versions"]["torch"] == torch.__version__
    assert found["device"]["type"] == "cpu"
    text = as_text(timed)
    assert "project" in text
    assert "4 MB" in text
    assert f"speedup {timed.speedup:.2f}" in text


def test_parts_come_in_the_order_of_a_step_and_unknown_ones_last():
    parts = dict.fromkeys(["mine", "back-project", "lookup", "draw"], PartCost())
    assert ordered(parts) == ["draw", "lookup", "back-project", "mine"]


def test_growth_is_time_per_size_against_the_first_row(result):
    first = attrs.evolve(result, step_ms_all=[2.0])
    twice = attrs.evolve(result, step_ms_all=[6.0], sizes={**result.sizes, "particles": 60})
    rows = [
        SweepRow(key="particles", value="30", result=first),
        SweepRow(key="particles", value="60", result=twice),
        SweepRow(key="particles", value="90", result=None, error="out of memory on cpu"),
    ]
    assert [row.growth(rows[0]) for row in rows] == [1.0, 1.5, None]
    slopes = [row.slope(before) for before, row in zip([None, *rows], rows, strict=False)]
    assert slopes == [None, pytest.approx(4e6 / 30), None]
    found = sweep_as_json(rows, "cswf bench")
    assert [row["sweep"]["size"] for row in found] == [30, 60, None]
    assert found[2]["error"] == "out of memory on cpu"
    lines = sweep_as_text(rows).splitlines()
    assert lines[-2].split()[:4] == ["60", "6", "ms", "1.50"]
    assert lines[-1].split() == ["90", "out", "of", "memory"]


def test_a_naive_step_that_does_not_fit_is_a_note(result, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(measuring, "time_naive", full)
    found = with_naive(attrs.evolve(result, naive=None), CPU)
    assert found.notes == ("the naive step does not fit into memory",)
    assert (found.naive_ms, found.speedup) == (None, None)
    assert as_json(found, "")["speedup"] is None


def test_shapes_resolutions_and_sweeps_are_read():
    assert parse_shape("3x32x32") == parse_shape("3×32×32") == (3, 32, 32)
    assert parse_shape("64") == (64,)
    assert parse_resolution("16") == (16, 16)
    assert parse_resolution("16x12") == (16, 12)
    key, requests = sweep(BenchRequest(), "resolution=4, 8")
    assert key == "resolution"
    assert {value: one.resolution for value, one in requests.items()} == {"4": (4, 4), "8": (8, 8)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize(("cdf", "precision"), [("histogram", "auto"), ("sorted", "float32")])
def test_a_gpu_is_measured_with_memory_of_its_own(cdf, precision, registry):
    gpu = torch.device("cuda")
    request = attrs.evolve(SMALL, particles=3000, data=4000, directions=2000, cdf=cdf, precision=precision)
    ceilings = measure_ceilings(gpu)
    found = with_naive(measure(request.load(gpu, registry), None, EFFORT, gpu, ceilings), gpu)
    assert found.device["type"] == "cuda"
    assert min(*found.step_ms_all, *found.naive.milliseconds) > 0
    assert found.peak_reserved_bytes >= found.peak_memory_bytes >= 4 * 192 * 3000
    assert found.parts["project"].milliseconds > 0
