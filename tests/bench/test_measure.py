"""What is measured adds up, and what is asked for is what is measured."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.bench import measure as measuring
from cswf_core.bench.measure import as_text, durations, measure, measure_ceilings, time_parts, with_naive
from cswf_core.bench.request import BenchRequest, parse_resolution, parse_shape
from cswf_core.errors import RunError
from cswf_core.flow.memory import Clock
from cswf_core.interfaces import Space
from cswf_core.recipe import load_recipe

CPU = torch.device("cpu")
SMALL = BenchRequest(
    particles=30, data=40, directions=20, shape=(3, 8, 8), patch=3, cdf="sorted", precision="float32"
)
CEILINGS = {"copy_bandwidth": 1e9, "matrix_rate": 1e9}


@pytest.fixture(scope="module")
def timed(registry):
    """Returns a small measurement of a request."""
    return lambda request: measure(request.load(CPU, registry), None, 2, 1, CPU, CEILINGS)


@pytest.fixture(scope="module")
def result(timed):
    """A small measurement, once for all tests."""
    return with_naive(timed(SMALL), CPU)


def test_sizes_are_those_asked_for_and_every_part_of_a_step_has_its_time_and_its_work(result):
    sizes = {"particles": 30, "data": 40, "directions": 20, "shape": [3, 8, 8], "patch": 3, "classes": 0}
    assert sizes.items() <= result["sizes"].items()
    assert (result["sizes"]["dimension"], result["sizes"]["stage_dimension"]) == (192, 192)
    assert (result["stage"], result["products"]) == ("(8×8) [3]", "float32")
    assert len(result["step_ms_all"]) == 2
    assert min(result["step_ms_all"]) > 0
    assert result["speedup"] == pytest.approx(result["naive_ms"] / result["step_ms"])
    assert min(result["peak_memory_bytes"], result["naive_peak_memory_bytes"]) > 0
    assert {"draw", "project", "back-project", "move"} <= result["parts"].keys()
    project = result["parts"]["project"]
    assert min(project["ms"], project["flops"], project["bytes"]) > 0
    assert project["bandwidth_fraction"] == pytest.approx(project["bytes"] / project["ms"] * 1e3 / 1e9)
    assert project["matrix_fraction"] == pytest.approx(project["flops"] / project["ms"] * 1e3 / 1e9)
    assert result["step"]["ms"] == result["step_ms"]
    assert result["step"]["bytes"] == sum(part["bytes"] for part in result["parts"].values())
    assert (result["versions"]["torch"], result["device"]["type"]) == (torch.__version__, "cpu")
    text = as_text(result)
    assert "back-project" in text
    assert f"speedup {result['speedup']:.2f}" in text


def test_bytes_are_those_of_the_sizes(timed):
    parts = timed(attrs.evolve(SMALL, cdf="histogram"))["parts"]
    M, N, H, d, B = 30, 40, 20, 192, 512
    assert parts["draw"]["bytes"] == 4 * H * d
    assert parts["move"]["bytes"] == 3 * 4 * d * M
    assert parts["count"]["bytes"] == 4 * H * (M + N)
    assert parts["tables"]["bytes"] == 2 * (4 * H * (B + 1) + 8 * H) + 8 * H * (B + 1)
    assert parts["lookup"]["bytes"] == 8 * H * M


def test_parts_that_nobody_knows_come_last_and_the_stopwatch_is_taken_out_of_the_flow_again():
    class Timed:
        device = CPU
        clock = Clock()

        def __iter__(self):
            while True:
                for name in ("mine", "back-project", "draw"):
                    with self.clock.part(name, lambda: (8.0, 4.0)):
                        yield None

    flow = Timed()
    costs = time_parts(flow, iter(flow), 30, 1)
    assert list(costs) == ["draw", "back-project", "mine"]
    assert 64 <= costs["draw"].bytes == 2 * costs["draw"].flops
    assert type(flow.clock) is Clock


def test_coarse_stages_and_classes_are_measured_in_their_own_dimensions(timed):
    found = timed(attrs.evolve(SMALL, resolution=(4, 4), classes=5))
    assert (found["sizes"]["dimension"], found["sizes"]["stage_dimension"]) == (192, 48)
    assert found["sizes"]["condition_length"] == 5
    assert found["condition"] == "one-hot"


@pytest.mark.parametrize(("shape", "projection"), [((5,), None), ((1, 4, 4), "uniform")])
def test_points_and_projections_without_patches_are_measured_too(shape, projection, timed):
    found = timed(attrs.evolve(SMALL, shape=shape, projection=projection))
    assert found["projection"] == "uniform"
    assert found["sizes"]["stage_dimension"] == Space(shape).dimension


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
    schedule = recipe.schedule.part
    every = schedule.stages(space, projection)
    for number, expected in ((None, every[-1]), (1, every[0]), (3, every[2])):
        (stage,) = measuring.SingleStage(schedule, number, 1000).stages(space, projection)
        assert (stage.name, stage.directions) == (expected.name, expected.directions)
        assert stage.sampler == expected.sampler
        assert stage.steps == 1000
        assert stage.eta(999) == expected.eta(0)
    with pytest.raises(RunError, match=f"there is no stage 99: the schedule has {len(every)}, counted from 1"):
        measuring.SingleStage(schedule, 99, 1).stages(space, projection)


def test_cpu_defaults_are_named_unless_everything_is_given():
    assert "particles 2,000" in BenchRequest().note(CPU)
    assert "shape 3×16×16" in BenchRequest(particles=5).note(CPU)
    assert "particles" not in BenchRequest(particles=5).note(CPU)
    assert SMALL.note(CPU) == ""
    assert BenchRequest(recipe="digits").note(CPU) == ""
    assert BenchRequest().note(torch.device("cuda")) == ""


def test_ceilings_are_measured():
    assert min(measure_ceilings(CPU).values()) > 1e8


def test_durations_are_one_for_each_call():
    calls = []
    assert len(durations(CPU, lambda: calls.append(1), 4)) == len(calls) == 4
    assert durations(CPU, lambda: calls.append(1), 0) == []


def test_a_naive_step_that_does_not_fit_is_a_note(result, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(measuring, "time_naive", full)
    found = with_naive({**result, "naive_ms": None, "speedup": None}, CPU)
    assert found["notes"] == ["the naive step does not fit into memory"]
    assert (found["naive_ms"], found["speedup"]) == (None, None)


def test_shapes_and_resolutions_are_read():
    assert parse_shape("3x32x32") == parse_shape("3×32×32") == (3, 32, 32)
    assert parse_shape("64") == (64,)
    assert parse_resolution("16") == (16, 16)
    assert parse_resolution("16x12") == (16, 12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize(("cdf", "precision"), [("histogram", "auto"), ("sorted", "float32")])
def test_a_gpu_is_measured_with_memory_of_its_own(cdf, precision, registry):
    gpu = torch.device("cuda")
    request = attrs.evolve(SMALL, particles=3000, data=4000, directions=2000, cdf=cdf, precision=precision)
    found = measure(request.load(gpu, registry), None, 2, 1, gpu, measure_ceilings(gpu))
    found = with_naive(found, gpu)
    assert found["device"]["type"] == "cuda"
    assert min(*found["step_ms_all"], *found["naive_ms_all"]) > 0
    assert found["peak_reserved_bytes"] >= found["peak_memory_bytes"] >= 4 * 192 * 3000
    assert found["parts"]["project"]["ms"] > 0
