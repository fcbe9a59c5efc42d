"""The pyramid: entries as in the paper's table, exact coordinates, step sizes, and leaving early."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import Tensor

from cswf_core.errors import DataError, RunError
from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.stability import safe_step
from cswf_core.interfaces import Dataset, Draw, Key, ProjectionSampler, Schedule, Space, Stage
from cswf_plugins.conditions.colorize import Colorize
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.super_resolution import SuperResolution
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.adaptive import Adaptive
from cswf_plugins.schedules.pyramid import Enlarged, Entry, PerDimension, Pyramid
from tests.conftest import small_flow

COLOUR = Space((3, 12, 10))
KERNELS = ("lanczos5", "lanczos3", "bicubic", "nearest")


def entries(*texts: str) -> tuple[Entry, ...]:
    return tuple(map(Entry.from_text, texts))


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("(8×8) [8, 7, 5, 3]", Entry(8, 8, (8, 7, 5, 3))),
        ("(8x8)[8,7,5,3]", Entry(8, 8, (8, 7, 5, 3))),
        (" ( 4 × 6 ) [ 3 ]  steps=20 dilation = 2 ", Entry(4, 6, (3,), steps=20, dilation=2)),
        ("(7×7) [dense, 7, 5, 3]", Entry(7, 7, ("dense", 7, 5, 3))),
        ("(7x7)[3, dense ] dilation=2", Entry(7, 7, (3, "dense"), dilation=2)),
        ("(1×1) [dense] steps=20", Entry(1, 1, ("dense",), steps=20)),
    ],
)
def test_an_entry_reads_as_in_the_paper_s_table_and_is_written_back(text, entry):
    assert Entry.from_text(text) == entry
    assert Entry.from_text(str(entry)) == entry


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("8×8 [8]", r"must be an entry such as '\(8×8\) \[8, 7, 5, 3\]'"),
        ("(8×8) []", r"needs patch sizes, as in '\(8×8\) \[8\]'"),
        ("(8×8) [3,,5]", "needs patch sizes"),
        ("(8×8) [dens]", r"needs patch sizes, as in '\(8×8\) \[8\]', or 'dense' for uniform directions, got"),
        ("(8×8) [dense 8]", "or 'dense' for uniform directions"),
        ("(8×8) [3_0]", "needs patch sizes"),
        ("(8×8) [²]", "needs patch sizes"),
        ("(8×8) [-3]", "must be an entry such as .*perhaps with 'dense' among the patch sizes"),
        ("(8×8) [dense] dilation=2", "takes dilation=N only with patches, and 'dense' has none"),
        ("(0×8) [dense]", "must have numbers of 1 or more"),
        ("(8×8) [3] speed=2", "takes steps=N and dilation=N"),
        ("(8×8) [3] steps=2 steps=3", "takes steps=N and dilation=N, each once"),
        ("(8×8) [3] steps=lots", "takes steps=N"),
        ("(8×8) [3] steps=²", "takes steps=N"),
        ("(0×8) [3]", "must have numbers of 1 or more"),
        ("(8×8) [0]", "must have numbers of 1 or more"),
        ("(8×8) [3] dilation=0", "must have numbers of 1 or more"),
    ],
)
def test_a_mistake_in_an_entry_is_one_sentence(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        Entry.from_text(text)


def test_stages_follow_the_table():
    schedule = Pyramid(
        entries=entries("(1×1) [1] steps=20", "(6×5) [5, 3]", "(12×10) [7] dilation=2"), steps=200
    )
    stages = schedule.stages(COLOUR, LocallyConnected())
    assert [s.name for s in stages] == ["(1×1) [1]", "(6×5) [5]", "(6×5) [3]", "(12×10) [7] dilation=2"]
    assert [s.steps for s in stages] == [20, 200, 200, 200]
    assert [s.directions for s in stages] == [10000] * 4
    assert [s.sampler.patch for s in stages] == [1, 5, 3, 7]
    assert [s.sampler.dilation for s in stages] == [1, 1, 1, 2]
    shapes = [s.upsampling and s.upsampling.space.shape for s in stages]
    assert shapes == [(3, 1, 1), (3, 6, 5), (3, 6, 5), None]
    assert [s.step_size for s in stages] == [3, 90, 90, 360]


@pytest.mark.parametrize("projection", [ConvStack(), HighPass(of=ConvStack())])
def test_a_dense_stage_has_uniform_directions_whatever_the_projection(projection):
    stages = Pyramid(entries=entries("(6×5) [5, dense, 3]")).stages(COLOUR, projection)
    assert [s.name for s in stages] == ["(6×5) [5]", "(6×5) [dense]", "(6×5) [3]"]
    assert [s.sampler for s in stages] == [projection.patched(5), Uniform(), projection.patched(3)]
    assert [s.step_size for s in stages] == [90] * 3
    assert stages[1].upsampling.space.shape == (3, 6, 5)
    (alone,) = Pyramid(entries=entries("(6×5) [dense]")).stages(COLOUR, Uniform())  # which has no patches
    assert alone.sampler == Uniform()


def test_a_flow_runs_through_dense_stages():
    x = Key(1, "x").open(dtype=torch.float64).normal(360, 50) * 0.3
    schedule = Pyramid(entries=entries("(4×4) [dense, 3]", "(12×10) [dense]"), steps=2, directions=400)
    projection = ConvStack(width=4, covering="placed")
    flow = small_flow(Dataset(x=x, space=COLOUR), projection=projection, schedule=schedule)
    before = flow.samples().x
    after = flow.run().x
    assert torch.isfinite(after).all()
    assert float(after.std()) < float(before.std())  # on its way from 1 to 0.3


def test_directions_in_proportion_to_the_stage():
    spec = PerDimension(per_dimension=2, at_least=100, at_most=500)
    schedule = Pyramid(entries=entries("(2×2) [2]", "(6×5) [3]", "(12×10) [3]"), directions=spec)
    assert [s.directions for s in schedule.stages(COLOUR, ConvStack())] == [100, 180, 500]
    with pytest.raises(ValueError, match=r"at_least \(100\) must not be above at_most \(10\)"):
        PerDimension(per_dimension=1, at_least=100, at_most=10)


def test_scale_shortens_every_entry_but_leaves_a_step():
    schedule = Pyramid(entries=entries("(1×1) [1] steps=20", "(6×5) [5]"), steps=200, scale=0.01)
    assert [s.steps for s in schedule.stages(COLOUR, ConvStack())] == [1, 2]


@pytest.mark.parametrize(
    ("rule", "sizes"),
    [
        ({}, [12.0, 25.0]),  # C·k², never more than H/2
        ({"step_size": "released"}, [12.0, 50.0]),  # C·k², never more than H
        ({"step_size": "dimension"}, [360.0, 360.0]),
        ({"step_size": 7.0}, [7.0, 7.0]),
        ({"factor": 0.5}, [6.0, 12.5]),
    ],
)
def test_step_sizes_follow_their_rule(rule, sizes):
    schedule = Pyramid(entries=entries("(2×2) [2]", "(12×10) [3]"), directions=50, **rule)
    assert [s.eta(0) for s in schedule.stages(COLOUR, ConvStack())] == sizes


def test_step_sizes_fall_to_nothing_over_the_last_steps():
    schedule = Pyramid(entries=entries("(2×2) [2]", "(4×4) [4]"), steps=10, decay=0.6, step_size=1.0)
    stages = schedule.stages(COLOUR, ConvStack())
    etas = [stage.eta(step) for stage in stages for step in range(stage.steps)]
    assert etas[:9] == [1.0] * 9
    assert etas[9:] == pytest.approx([twelfths / 12 for twelfths in range(11, 0, -1)])


def test_the_paper_s_step_size_read_literally_diverges_on_coarse_grids():
    """η = d at 1×1 is d/C times too long; the engine says so instead of going on."""
    data = Dataset(x=Key(1, "x").open(dtype=torch.float64).normal(360, 60), space=COLOUR)
    schedule = Pyramid(entries=entries("(1×1) [1]"), steps=50, directions=200, step_size="dimension")
    with pytest.raises(RunError, match="the flow ran away"):
        small_flow(data, projection=ConvStack(), schedule=schedule).run()


def growth(schedule: Pyramid, space: Space, projection: ProjectionSampler) -> list[float]:
    """By what an error of the mean is multiplied per step of each stage; above 1 it grows without bounds.

    Whatever the data, such an error follows e ← e − (η/H) Σ θ (θ·e), which needs neither particles nor data.
    """
    data = Dataset(x=torch.zeros(space.dimension, 2, dtype=torch.float64), space=space)
    flow = small_flow(data, projection=projection, schedule=schedule, count=2)
    found = []
    for index, stage in enumerate(flow.stages):
        sampler = flow.setup.sampler(stage)
        coordinates = sampler.coordinates
        eta = stage.eta(0) * safe_step(sampler, Key(flow.settings.seed, "gain", index)).factor
        error = Key(1, "e").open(dtype=torch.float64).normal(space.dimension, 1)
        z = coordinates.enter(error)
        lengths = []
        for step in range(16):
            update = sum(
                t.adjoint(t.project(Cloud(z, None)), Cloud(z, None))
                for t in sampler.batches(0, index, step, check=False)
            )
            z = z - eta / stage.directions * coordinates.gram(update)
            lengths.append(float(z.norm()))
        found.append((lengths[-1] / lengths[7]) ** (1 / 8))
    return found


@pytest.mark.parametrize("projection", [ConvStack(), LocallyConnected()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("per_dimension", [0.5, 1.0, 2.0])
def test_the_stage_rule_lets_no_error_grow(projection, per_dimension):
    """Also near H = C·k², and where borders and kernels make directions uneven."""
    directions = PerDimension(per_dimension=per_dimension, at_least=1)
    schedule = Pyramid(
        entries=entries("(3×3) [3]", "(9×9) [7, 3]", "(11×11) [9] dilation=2"), directions=directions
    )
    assert max(growth(schedule, Space((1, 14, 14)), projection)) < 1


def test_nearest_pixels_are_tempered_where_they_would_diverge():
    schedule = Pyramid(entries=entries("(9×9) [9]", "(7×7) [5]"), directions=2000, upsample="nearest")
    space = Space((1, 14, 14))
    nine, seven = schedule.stages(space, LocallyConnected())
    assert nine.tempered
    assert not seven.tempered  # every pixel is repeated twice
    assert max(growth(schedule, space, LocallyConnected())) < 1
    assert not any(s.tempered for s in attrs.evolve(schedule, upsample="bicubic").stages(space, ConvStack()))


def test_entries_larger_than_the_images_and_points_are_refused():
    larger = r"entry '\(24×24\) \[3\]' of the schedule is larger than the images, 12×10"
    with pytest.raises(DataError, match=larger):
        Pyramid(entries=entries("(24×24) [3]")).stages(COLOUR, ConvStack())
    with pytest.raises(DataError, match="schedule 'pyramid' needs images, and these data are points in 2 dim"):
        Pyramid(entries=entries("(1×1) [1]")).stages(Space((2,)), ConvStack())


@pytest.mark.parametrize("kernel", KERNELS)
def test_down_is_the_transpose_of_up_and_gram_is_both(kernel):
    U = Enlarged(Space((3, 5, 4)), COLOUR, kernel)
    unit = torch.eye(60).double()
    dense = U.up(unit)
    assert dense.shape == (360, 60)
    torch.testing.assert_close(U.down(torch.eye(360).double()), dense.T)
    torch.testing.assert_close(U.gram(unit), dense.T @ dense)
    # Scaled by √(k/size) along each axis, G is near the identity.
    assert float(torch.linalg.eigvalsh(dense.T @ dense)[-1]) < 1.6


@attrs.frozen
class UpsampledFilters(ProjectionSampler):
    """A stage's filters, already enlarged to the images' size and of unit length there: no coordinates."""

    stage: Stage

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor:
        assert self.stage.upsampling is not None
        t = self.stage.sampler.sample(self.stage.upsampling.space, count, draw)
        theta = self.stage.upsampling.up(t.T).T
        return theta / theta.norm(dim=1, keepdim=True)


@attrs.frozen
class Plain(Schedule):
    """A pyramid computed on the images themselves."""

    pyramid: Pyramid

    def stages(self, space: Space, projection: ProjectionSampler) -> list[Stage]:
        stages = self.pyramid.stages(space, projection)
        enlarged = [attrs.evolve(s, upsampling=None, sampler=UpsampledFilters(s)) for s in stages]
        return [s if s.upsampling is None else e for s, e in zip(stages, enlarged, strict=True)]


CONDITIONS = {
    "none": NoCondition(),
    "mask": Mask(hidden="centre"),
    "stretched mask": Mask(hidden="left", amplifier=3.0),
    "mask for each": Mask(hidden="boxes", masks="each", share=0.4),
    "super-resolution": SuperResolution(size=2),
    "colorize": Colorize(amplifier=2.0),
}


@pytest.mark.parametrize(
    ("kernel", "name"), [*((kernel, "mask") for kernel in KERNELS[1:]), *(("lanczos5", n) for n in CONDITIONS)]
)
def test_stage_coordinates_equal_the_full_resolution(kernel, name):
    x = Key(1, "x").open(dtype=torch.float64).normal(360, 50) * 0.3
    data = Dataset(x=x, space=COLOUR, bin_width=0.05)
    # With `nearest`, grids that do not divide the image would be tempered, by estimates of their own; so would
    # full steps be with patches that are dilated.
    divided = kernel == "nearest"
    between = ("(6×5) [5, 3]", "(4×2) [3]") if divided else ("(5×4) [5, 3]", "(8×8) [3] dilation=2")
    grids = entries("(1×1) [1]", *between, "(12×10) [5]")
    schedule = Pyramid(entries=grids, steps=2, directions=150, upsample=kernel, factor=0.7)
    settings = {"condition": CONDITIONS[name], "projection": LocallyConnected()}
    got = small_flow(data, schedule=schedule, **settings).run()
    expected = small_flow(data, schedule=Plain(schedule), **settings).run()
    torch.testing.assert_close(got.x, expected.x, atol=1e-9, rtol=0)
    assert float((got.x - small_flow(data, schedule=schedule, **settings).samples().x).abs().max()) > 0.1


def test_an_adaptive_schedule_leaves_a_stage_that_has_nothing_to_give():
    x = Key(1, "x").open(dtype=torch.float64).normal(360, 60) * 0.3
    data = Dataset(x=x, space=COLOUR)
    settings = {"entries": entries("(2×2) [2]", "(4×4) [4]"), "steps": 100, "directions": 100}
    flow = small_flow(data, projection=ConvStack(), schedule=Adaptive(**settings, window=5, shortest=12))
    taken: dict[int, int] = {}
    for state in flow:
        taken[state.stage_index] = state.step
    assert set(taken) == {0, 1}
    assert all(12 <= steps < 100 for steps in taken.values())
    left_to_run = small_flow(data, projection=ConvStack(), schedule=Pyramid(**settings | {"steps": 60}))
    left_to_run.run()
    adaptive, thorough = (f.samples().x.std() for f in (flow, left_to_run))
    assert float(adaptive) == pytest.approx(float(thorough), rel=0.05)


def test_a_tempered_step_still_decays():
    x = Key(1, "x").open(dtype=torch.float64).normal(360, 30) * 0.3
    schedule = Pyramid(entries=entries("(4×4) [4]"), steps=10, directions=300, decay=1.0)
    sampler = HighPass(of=ConvStack(), local=(0.8, 1.0), channel=(0.8, 1.0))
    flow = small_flow(Dataset(x=x, space=COLOUR), projection=sampler, schedule=schedule)
    etas = [state.eta for state in flow]
    assert etas[0] < 0.9 * 48
    assert etas == pytest.approx([etas[0] * (10 - i) / 10 for i in range(10)])


def test_an_adaptive_schedule_stays_while_the_distance_falls_and_has_no_decay():
    schedule = Adaptive(entries=entries("(2×2) [2]"), window=5, shortest=10)
    stage = Stage(steps=100, directions=1, step_size=1.0)
    noise = Key(1, "noise").open(dtype=torch.float64).normal(60).tolist()
    falling = [10 * 0.9**i + 0.001 * n for i, n in enumerate(noise)]
    assert not any(schedule.stop(stage, falling[:i]) for i in range(1, 40))
    flat = [1 + 0.01 * n for n in noise]
    assert not schedule.stop(stage, flat[:9])
    assert sum(schedule.stop(stage, flat[:i]) for i in range(10, 60)) > 40
    with pytest.raises(ValueError, match="decay counts from the last step, and 'adaptive' does not know"):
        Adaptive(entries=entries("(2×2) [2]"), decay=0.1)
