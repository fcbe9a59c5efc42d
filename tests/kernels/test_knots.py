"""Maps by knots are piecewise linear, and constant beyond their last knots; tables keep them in few bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cswf_core.flow.tables import Knots, Lookup, StepTables
from cswf_core.kernels.knots import displaced, lines, positions
from cswf_core.kernels.rows import Rows


def maps(S: int = 1, H: int = 4, K: int = 9, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Centres, lengths on either side of them, and displacements at the knots."""
    draw = torch.Generator().manual_seed(seed)
    centre = torch.randn(S, H, generator=draw, dtype=torch.float64)
    reach = 0.1 + torch.rand(S, H, 2, generator=draw, dtype=torch.float64)
    return centre, reach, torch.randn(S, H, K, generator=draw, dtype=torch.float64)


def values(H: int = 4, n: int = 500, seed: int = 1) -> torch.Tensor:
    return 2 * torch.randn(H, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moved(p: torch.Tensor, *table: torch.Tensor, cells: torch.Tensor | None = None) -> torch.Tensor:
    """Where values go."""
    rows = Rows.of(p.clone())
    centre, reach, _ = table
    squares = displaced(rows, centre, reach, lines(*table), cells)
    torch.testing.assert_close(squares, rows.values.square().sum(dim=1))
    return p + rows.values


@given(st.integers(1, 20), st.integers(0, 9))
def test_between_knots_and_beyond_them_the_map_is_numpy_s_interpolation(side, seed):
    centre, reach, delta = maps(K=2 * side + 1, seed=seed)
    at = positions(centre, reach, 2 * side + 1)
    p = values(seed=seed)
    expected = np.stack(list(map(np.interp, p.numpy(), at[0].numpy(), (at + delta)[0].numpy())))
    np.testing.assert_allclose(moved(p, centre, reach, delta).numpy(), expected, atol=1e-9)


def test_knots_reach_from_end_to_end_and_are_densest_at_the_centre():
    centre, reach, _ = maps()
    at = positions(centre, reach, 9)
    torch.testing.assert_close(at[..., 0], centre - reach[..., 0])
    torch.testing.assert_close(at[..., 4], centre)
    torch.testing.assert_close(at[..., -1], centre + reach[..., 1])
    gaps = at.diff(dim=-1)
    assert (gaps[..., :4].diff(dim=-1) < 0).all()
    assert (gaps[..., 4:].diff(dim=-1) > 0).all()


def test_each_value_moves_by_the_table_of_its_cell():
    table = maps(S=3)
    p = values()
    cells = torch.arange(500) % 3
    found = moved(p, *table, cells=cells)
    for number in range(3):
        own = [part[number : number + 1] for part in table]
        torch.testing.assert_close(found[:, cells == number], moved(p[:, cells == number], *own))


def test_a_table_without_any_width_sends_everything_to_one_place():
    centre = torch.full((1, 2), 3.0)
    p = torch.tensor([[1.0, 3.5, 7.0]]).expand(2, 3)
    found = moved(p, centre, torch.full((1, 2, 2), 2.0**-32), torch.full((1, 2, 5), -1.0))
    torch.testing.assert_close(found, torch.full((2, 3), 2.0))


def test_a_value_that_is_no_number_stays_one_and_others_do_not_notice():
    p = values()
    p[0, 0] = torch.nan
    found = Rows.of(p.clone())
    centre, reach, delta = maps()
    displaced(found, centre, reach, lines(centre, reach, delta), None)
    assert bool(found.values[0, 0].isnan())
    assert torch.isfinite(found.values[1:]).all()


@pytest.mark.parametrize(("bits", "allowed"), [(4, 0.17), (8, 0.01), (16, 4e-5)])
@pytest.mark.parametrize("K", [9, 13])
def test_tables_keep_displacements_to_a_share_of_the_longest(bits, allowed, K):
    _, _, delta = maps(S=3, K=K)
    low, high = torch.full((3, 4), -2.0), torch.full((3, 4), 1.0)
    grid = Knots.of(low, torch.zeros(3, 4), high)
    tables = StepTables.of(grid.centre, grid.ends, delta.float(), bits)
    lookup = Lookup.of(tables, K, torch.empty(0))
    longest = delta.abs().amax(dim=-1, keepdim=True)
    assert float(((lookup.delta - delta).abs() / longest).max()) < allowed
    assert tables.levels.nbytes == 12 * (K // 2 + 1 if bits == 4 else K * bits // 8)


def test_lengths_are_stored_so_that_nothing_lies_beyond_the_last_knots():
    low = -torch.logspace(-6, 6, 400).view(1, -1)
    grid = Knots.of(low, torch.zeros(1, 400), -3 * low)
    at = grid.positions(5, torch.float64)
    for stored, wanted in ((-at[..., 0], -low), (at[..., -1], -3 * low)):
        assert (stored >= wanted * (1 - 1e-6)).all()
        assert (stored <= 1.19 * wanted).all()
