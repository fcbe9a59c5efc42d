"""The naive step is the same step as the engine's, only slower."""

from __future__ import annotations

import inspect
import re

import attrs
import pytest
import torch

from cswf_core.bench.measure import time_naive
from cswf_core.bench.naive import full_float32, naive_step, random_directions
from cswf_core.flow.step import step
from cswf_core.interfaces import Dataset, Draw, Key, ProjectionSampler, Space
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.schedules.constant import Constant
from tests.conftest import random_data, small_flow
from tests.project.sources import blocks, read

CPU = torch.device("cpu")


@attrs.frozen
class Remembered(ProjectionSampler):
    """Uniform directions, kept by the key that they were drawn with."""

    drawn: dict[Key, torch.Tensor] = attrs.field(factory=dict)

    def sample(self, space: Space, count: int, draw: Draw) -> torch.Tensor:
        return self.drawn.setdefault(draw.key, draw.sphere(count, space.dimension))


@pytest.mark.parametrize(("M", "N", "H"), [(30, 40, 7), (40, 30, 1500), (12, 12, 1), (1, 9, 5), (9, 3, 5)])
def test_it_agrees_with_the_engine_s_exact_step_along_the_same_directions(M, N, H):
    data = attrs.evolve(random_data(d=6, n=N), conditions=Dataset(torch.zeros(1, 1), Space((1,))).conditions)
    projection, eta = Remembered(), 0.7
    flow = small_flow(
        attrs.evolve(data, classes=()),
        condition=NoCondition(),
        projection=projection,
        schedule=Constant(steps=2, directions=H, step_size=eta),
        count=M,
    )
    before = flow.particles.x.clone()
    next(iter(flow))
    thetas = list(projection.drawn.values())
    assert sum(len(theta) for theta in thetas) == H
    expected = naive_step(before, data.x, thetas, eta)
    torch.testing.assert_close(flow.samples().x, expected, rtol=1e-9, atol=1e-9)


def test_it_does_not_depend_on_how_directions_are_cut_into_chunks():
    generator = torch.Generator().manual_seed(3)
    z, data = torch.randn(5, 30, generator=generator), torch.randn(5, 50, generator=generator)
    (theta,) = random_directions(40, 5, generator)
    whole = naive_step(z, data, [theta], 1.0)
    torch.testing.assert_close(naive_step(z, data, theta.split(7), 1.0), whole)


def test_directions_have_unit_length_and_there_are_as_many_as_asked_for():
    chunks = list(random_directions(1100, 4, torch.Generator().manual_seed(0)))
    assert [len(chunk) for chunk in chunks] == [512, 512, 76]
    torch.testing.assert_close(torch.linalg.vector_norm(torch.cat(chunks), dim=1), torch.ones(1100))


def test_its_times_are_positive_and_tf32_is_left_as_it_was():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with full_float32():
            assert torch.get_float32_matmul_precision() == "highest"
        milliseconds, highest = time_naive(5, 20, 30, 600, CPU)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(milliseconds) == 3
    assert min(*milliseconds, highest) > 0


def test_the_docs_show_both_steps_as_they_are():
    sources = [inspect.getsource(naive_step), inspect.getsource(step)]
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)` \| `([^`]+)` \|$", read("docs/method.md"), re.MULTILINE)
    assert len(rows) == 7  # with the names of the two
    assert all(line in source for row in rows for line, source in zip(row, sources, strict=True))
    shown = blocks("CONTRIBUTING.md", 'python skip="part of a function"')
    for text, source in zip(shown, sources, strict=True):  # ruff sets blank lines of its own in pages
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        assert "\n".join(lines) in "\n".join(line.strip() for line in source.splitlines() if line.strip())
