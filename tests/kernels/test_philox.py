"""Random numbers by counting: the published values, and what random numbers must look like."""

from __future__ import annotations

import math

import pytest
import torch

from cswf_core.interfaces import Draw, Key
from cswf_core.kernels import philox

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (2**64 - 1, 2**128 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            0x299F31D0_A4093822,
            0x03707344_13198A2E_85A308D3_243F6A88,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_words_are_the_known_answers_of_philox_4x32_10(key, counter, expected):
    """From the test vectors that the authors of Philox publish with Random123."""
    low = counter & (2**64 - 1)
    first = low - 2**64 if low >= 2**63 else low  # as an int64
    got = philox.words(key, counter >> 64, first, 1, CPU)[0].tolist()
    # A negative first counter has its upper half sign-extended: mask as the generator does.
    assert tuple(got) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_are_those_of_the_distribution(dtype):
    draw = Key(3, "moments").open(dtype=dtype)
    u, z = draw.uniform(400_000).double(), draw.normal(400_000).double()
    assert (u >= 0).all()
    assert (u < 1).all()
    for power in range(1, 5):
        assert float(u.pow(power).mean()) == pytest.approx(1 / (power + 1), abs=0.003)
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        assert float(z.pow(power).mean()) == pytest.approx(moment, abs=0.02 * 3**power / 3)
    levels = torch.linspace(-3, 3, 25, dtype=torch.float64)
    found = (z[:, None] < levels).double().mean(dim=0)
    torch.testing.assert_close(found, (1 + torch.erf(levels / math.sqrt(2))) / 2, atol=0.003, rtol=0)


def test_neighbours_and_pairs_are_independent():
    z = Key(5, "pairs").open().normal(4, 100_000).double()
    torch.testing.assert_close(z @ z.T / 100_000, torch.eye(4).double(), atol=0.015, rtol=0)
    flat = z.T.reshape(-1)
    for lag in (1, 2, 3, 4, 8):
        assert abs(float((flat[:-lag] * flat[lag:]).mean())) < 0.008


def test_a_stream_goes_on_where_it_was_and_parts_make_the_whole():
    whole, parts = Key(1, "x").open(), Key(1, "x").open()
    together = whole.uniform(40)
    assert torch.equal(torch.cat([parts.uniform(12), parts.uniform(28)]), together)
    assert not torch.equal(whole.uniform(40), together)


def test_keys_that_differ_in_anything_give_other_numbers():
    keys = [Key(0, "a"), Key(1, "a"), Key(0, "b"), Key(0, "a", 0), Key(0, "a", -1, 0), Key(0, "a", index=1)]
    draws = [key.open().uniform(50) for key in keys]
    for i, one in enumerate(draws):
        for other in draws[:i]:
            assert not torch.isclose(one, other).any()


def test_integers_cover_their_range_evenly():
    found = torch.bincount(Key(0, "n").open().integers(7, 70_000), minlength=7)
    assert found.shape == (7,)
    assert ((found - 10_000).abs() < 400).all()
    assert Key(0, "n").open().integers(1, 5).tolist() == [0] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sphere_of_a_line_is_two_points_even_where_a_normal_number_is_0(dtype, monkeypatch):
    points = Key(0, "sphere").open(dtype=dtype).sphere(10_000, 1)
    assert points.dtype == dtype
    assert set(points.flatten().tolist()) == {-1.0, 1.0}
    assert abs(float(points.mean())) < 0.05
    assert torch.equal(points, Key(0, "sphere").open(dtype=dtype).normal(10_000, 1).sign())
    monkeypatch.setattr(Draw, "normal", lambda self, *shape: torch.zeros(shape, dtype=dtype))
    assert torch.equal(Key(0, "sphere").open(dtype=dtype).sphere(3, 1).abs(), torch.ones(3, 1, dtype=dtype))


@pytest.mark.parametrize(("count", "total"), [(1, 1), (7, 7), (5, 12), (12, 100), (3, 1000), (97, 1000)])
def test_some_numbers_of_many_are_different_rising_and_each_as_likely(count, total):
    seen = torch.zeros(total)
    rounds = 600
    for step in range(rounds):
        some = Key(0, "some", step=step).open(dtype=torch.float64).spread(count, total)
        assert len(some) == count
        assert bool((some.diff() > 0).all())
        seen[some] += 1
    share = count / total
    assert float((seen / rounds - share).abs().max()) <= 5 * (share * (1 - share) / rounds) ** 0.5
