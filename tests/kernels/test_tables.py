"""Tables are piecewise linear maps, whose images end where their ends' images are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cswf_core.flow.transport import LOOKUP_BINS, Lookup, displacement
from cswf_core.kernels.rows import Rows


def tables(H: int = 4, K: int = 9, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    positions = torch.randn(H, K, generator=draw, dtype=torch.float64).sort(dim=1).values
    images = torch.randn(H, K, generator=draw, dtype=torch.float64).sort(dim=1).values
    return positions, images - positions


def values(H: int = 4, n: int = 500, seed: int = 1) -> torch.Tensor:
    return 2 * torch.randn(H, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(2, 40), st.integers(0, 9))
def test_between_knots_the_map_is_numpy_s_interpolation(K, seed):
    positions, displacements = tables(K=K, seed=seed)
    p = values(seed=seed)
    images = (positions + displacements).numpy()
    expected = np.stack(list(map(np.interp, p.numpy(), positions.numpy(), images)))
    delta = displacement(p, positions, displacements)
    np.testing.assert_allclose((p + delta).numpy(), expected, atol=1e-9)


def test_outside_the_knots_everything_is_pulled_to_the_image_of_the_end():
    positions, displacements = tables()
    far = torch.tensor([[-50.0, 50.0]], dtype=torch.float64).expand(4, 2).clone()
    images = far + displacement(far, positions, displacements)
    torch.testing.assert_close(images, (positions + displacements)[:, [0, -1]])
    rows = Rows.of(far.clone())
    Lookup.of(positions, displacements, rows.low).displace(rows)
    torch.testing.assert_close(far + rows.values, images)


def test_where_knots_coincide_the_map_jumps_and_stays_finite():
    positions = torch.tensor([[0.0, 1.0, 1.0, 1.0, 2.0]])
    displacements = torch.tensor([[0.0, 0.0, 1.0, 2.0, 2.0]])
    p = torch.tensor([[0.5, 0.999999, 1.0, 1.5]])
    delta = displacement(p, positions, displacements)
    torch.testing.assert_close(delta, torch.tensor([[0.0, 0.0, 2.0, 2.0]]), atol=1e-4, rtol=0)


def test_all_knots_in_one_place_send_everything_there():
    positions, displacements = torch.full((2, 5), 3.0), torch.full((2, 5), -1.0)
    p = torch.tensor([[1.0, 3.0, 7.0]]).expand(2, 3).clone()
    rows = Rows.of(p.clone())
    Lookup.of(positions, displacements, rows.low).displace(rows)
    torch.testing.assert_close(p + rows.values, torch.full((2, 3), 2.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_looking_up_in_bins_is_the_map_up_to_what_happens_inside_a_bin(dtype):
    positions, displacements = (table.to(dtype) for table in tables())
    p = values()
    rows = Rows.of(p.clone())
    squares = Lookup.of(positions, displacements, rows.low).displace(rows)
    positions, displacements = positions.double(), displacements.double()
    exact = displacement(p, positions, displacements)
    width = (positions[:, -1] - positions[:, 0])[:, None] / LOOKUP_BINS
    steepest = (displacements.diff(dim=1) / positions.diff(dim=1).clamp_min(1e-9)).abs().amax()
    assert ((rows.values - exact).abs() <= width * (1 + steepest)).all()
    torch.testing.assert_close(squares, rows.values.square().sum(dim=1))


def test_a_lookup_serves_any_number_of_batches():
    positions, displacements = tables()
    p = values(n=96)
    whole = Rows.of(p.clone())
    Lookup.of(positions, displacements, whole.low).displace(whole)
    lookup = Lookup.of(positions, displacements, p)
    parts = [part.clone() for part in p.split(32, dim=1)]
    for part in parts:
        lookup.displace(Rows.of(part))
    assert torch.equal(torch.cat(parts, dim=1), whole.values)
