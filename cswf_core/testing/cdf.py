"""Checks of CDF estimators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from cswf_core.checks import CheckedCDF
from cswf_core.checks.adapter import greatest_fall, not_finite
from cswf_core.interfaces import FittedCDF, Key, Rows
from cswf_core.recipe import Recipe
from cswf_core.testing.flows import POINTS, FlowSubject, bare, recipe_with, samples
from cswf_core.testing.outcome import SkipError, require

NEAR = 0.02
"""How far from the right value an estimate may be, in parts of the range of a row's values."""

ROUNDING = 1e-6
"""How far two ways to compute one number may be apart, in parts of the range of a row's values."""

LEVELS = torch.linspace(0, 1, 201, dtype=torch.float64)[None]


def _rows(seed: int) -> dict[str, Tensor]:
    """Return rows of values of every kind that an estimator meets, each 1×n in float64."""
    count = 200
    draw = Key(seed, "values").open(dtype=torch.float64)
    normal = draw.normal(1, count)
    outliers = draw.normal(1, count)
    outliers[0, 0] = 1e4
    return {
        "normal values": normal,
        "skewed values": draw.normal(1, count).exp(),
        "values with ties": draw.integers(4, 1, count).double(),
        "equal values": torch.full((1, count), 0.7, dtype=torch.float64),
        "values with an outlier": outliers,
    }


DISTINCT = ("normal values", "skewed values", "values with an outlier")
"""Rows without ties, where F⁻¹(F(z)) = z is to be expected."""


class Distributions(FlowSubject[CheckedCDF]):
    """A CDF estimator."""

    kind = "cdf"

    def fits(self, seed: int = 0) -> Iterator[tuple[str, Tensor, FittedCDF]]:
        """Yield the name of a row, its values (1×n) and their distribution."""
        for name, values in _rows(seed).items():
            yield name, values, self.checked.fit(values.clone())

    def answers(self) -> list[Tensor]:
        """Return the images of some values under the map to each distribution."""
        p = _rows(1)["normal values"]
        return [self.checked.transport(p.clone(), F) for _, _, F in self.fits()]

    def recipe(self) -> Recipe:
        """Return the recipe of a short flow with the estimator."""
        return recipe_with("cdf", self.plugin, bare(samples(POINTS)))


def _ends(values: Tensor) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _range(values: Tensor) -> float:
    return max(float(values.max() - values.min()), 1e-6)


def _grid(values: Tensor) -> Tensor:
    """Return values from below a row's least to above its greatest, in rising order: 1×m."""
    low, high = _ends(values)
    beyond = 0.1 * _range(values)
    even = torch.linspace(low - beyond, high + beyond, 301, dtype=values.dtype)[None]
    return torch.cat([even, values], dim=1).sort(dim=1).values


def levels_rise_within_0_and_1(subject: Distributions) -> None:
    """F(z) is a probability that never falls as z grows, or particles would be put out of order."""
    for name, values, F in subject.fits():
        levels = F.cdf(_grid(values))
        fall = greatest_fall(levels)
        require(fall <= ROUNDING, "levels that never fall as z grows", f"a fall by {fall:.3g} for {name}")
        low, high = _ends(levels)
        got = f"{low:.6g} … {high:.6g} for {name}"
        require(low >= -ROUNDING and high <= 1 + ROUNDING, "levels in [0, 1]", got)


def inverses_rise_near_the_values(subject: Distributions) -> None:
    """F⁻¹(a) never falls as a grows, is finite, and not beyond the values by more than their range."""
    for name, values, F in subject.fits():
        inverse = F.icdf(LEVELS)
        reach = _range(values)
        fall = greatest_fall(inverse)
        expected = "values that never fall as the level grows"
        require(fall <= ROUNDING * reach, expected, f"a fall by {fall:.3g} for {name}")
        low, high = _ends(values)
        least, greatest = _ends(inverse)
        require(
            least >= low - reach and greatest <= high + reach,
            f"values around {low:.4g} … {high:.4g} for {name}",
            f"{least:.4g} … {greatest:.4g}",
        )


def an_inverse_undoes_the_cdf(subject: Distributions) -> None:
    """F⁻¹(F(z)) is near z at the values themselves, where no two are equal."""
    expected = f"F⁻¹(F(z)) within {NEAR:.0%} of the range from z, on average"
    for name, values, F in subject.fits():
        if name in DISTINCT:
            gap = float((F.icdf(F.cdf(values)) - values).abs().mean()) / _range(values)
            require(gap <= NEAR, expected, f"{gap:.1%} for {name}")


def transport_agrees_with_sorting(subject: Distributions) -> None:
    """F_q⁻¹(F_p(p)) takes the i-th smallest of p near the i-th smallest of q, for q of every kind.

    Particles stay that are where the data are, no two at one place.
    """
    normal = Key(3, "particles").open(dtype=torch.float64).normal(1, 200)
    expected = f"images within {NEAR:.0%} of the data's range from those by sorting, on average"
    for name, q, F_q in subject.fits(seed=1):
        for p in (normal, q) if name in DISTINCT else (normal,):
            image = subject.checked.transport(p.clone(), F_q)
            exact = q.sort(dim=1).values[:, p[0].argsort().argsort()]
            gap = (image - exact).abs()
            apart = float(gap.max() if name == "equal values" else gap.mean() / _range(q))
            require(apart <= NEAR, expected, f"{apart:.1%} towards {name}")


def one_or_two_values_are_enough(subject: Distributions) -> None:
    """Distributions of one and of two values give finite levels, inverses and images."""
    for count in (1, 2):
        values = torch.tensor([[0.3, -0.4][:count]], dtype=torch.float64)
        F = subject.checked.fit(values.clone())
        answers = {
            "cdf": F.cdf(values),
            "icdf": F.icdf(LEVELS),
            "transport of many": subject.checked.transport(_rows(0)["normal values"], F),
            "transport of its own values": subject.checked.transport(values.clone(), F),
        }
        for method, answer in answers.items():
            got = f"NaN or infinity from {method} with n = {count}"
            require(not_finite(answer) == 0, "finite numbers", got)


def rows_do_not_mix(subject: Distributions) -> None:
    """A distribution is that of its row alone, whatever rows are fitted beside it."""
    rows = _rows(0)
    together = subject.checked.fit(torch.cat(list(rows.values())))
    grid = torch.cat([_grid(values) for values in rows.values()])
    level = together.cdf(grid)
    for number, (name, values) in enumerate(rows.items()):
        alone = subject.checked.fit(values.clone()).cdf(grid[number : number + 1])
        gap = float((alone - level[number]).abs().max())
        expected = "the same levels of a row alone and beside others"
        require(gap <= ROUNDING, expected, f"{gap:.3g} apart for {name}")


def answers_have_the_dtype_of_the_values_and_leave_these_alone(subject: Distributions) -> None:
    """Levels, inverses and images are in float32 or float64 as the values are.

    `fit`, `cdf`, `icdf` and `transport` change none of the tensors that they are given.
    """
    for dtype in (torch.float32, torch.float64):
        values = _rows(0)["normal values"].to(dtype)
        levels = LEVELS.to(dtype, copy=True)
        before = values.clone()
        F = subject.checked.fit(values)
        calls: dict[str, Callable[[], Tensor]] = {
            "cdf": partial(F.cdf, values),
            "icdf": partial(F.icdf, levels),
            "transport": partial(subject.checked.transport, values, F),
        }
        for method, call in calls.items():
            answer = call()
            require(answer.dtype == dtype, f"{method} in {dtype}, as its input", answer.dtype)
            left = torch.equal(values, before) and torch.equal(levels, LEVELS.to(dtype))
            expected = f"`{method}` to leave its input alone (only `displace` works in place)"
            require(left, expected, "other values")


def displacing_in_place_agrees_with_transport(subject: Distributions) -> None:
    """`displace`, and `between` where it returns a map, give F_q⁻¹(F_p(p)) − p and the sums of its squares."""
    estimator = subject.checked
    if not estimator.displaces:
        raise SkipError("it does not declare `displaces`, so the engine calls `transport`")
    if estimator.extrapolates:
        raise SkipError("it declares `extrapolates`: its maps are not F_q⁻¹∘F_p in the tails")
    p = _rows(1)["normal values"]
    for name, q, F in subject.fits():
        wanted = estimator.transport(p.clone(), F) - p
        F_q = estimator.fit_rows(Rows.of(q.clone()))
        rows = Rows.of(p.clone())
        _require_displaced("displace", rows, estimator.displace(rows, F_q), wanted, name)
        through = estimator.between(estimator.fit_rows(Rows.of(p.clone())), F_q)
        if through is not None:
            rows = Rows.of(p.clone())
            _require_displaced("between", rows, through.displace(rows), wanted, name)


def _require_displaced(method: str, rows: Rows, sums: Tensor, wanted: Tensor, name: str) -> None:
    """Raise `FaultError` unless rows have become the displacements wanted, with the sums of squares."""
    size = max(float(wanted.abs().max()), 1.0)
    gap = float((rows.values - wanted).abs().max()) / size
    lost = float((sums - wanted.square().sum(dim=1)).abs().max()) / size**2
    require(
        gap <= ROUNDING and lost <= ROUNDING * wanted.shape[1],
        f"`{method}` to give what `transport` gives, less p, and the sums of its squares",
        f"{gap:.1e} of the largest apart, sums {lost:.1e}, towards {name}",
    )


def counts_make_the_same_distributions(subject: Distributions) -> None:
    """`of_counts` with the counts of values in `bins` equal bins agrees with `fit` to the same values."""
    estimator = subject.checked
    bins = subject.checked.bins
    if bins is None:
        raise SkipError("it has no `bins`, so it takes no part in online learning")
    for name, values, F in subject.fits():
        low = values.amin(dim=1)
        high = values.amax(dim=1)
        edges = low[:, None] + (high - low)[:, None] * torch.linspace(0, 1, bins + 1, dtype=values.dtype)
        below = (values[:, :, None] < edges[:, None, :]).sum(dim=1)
        below[:, -1] = values.shape[1]
        counted = estimator.of_counts(below.int(), values.shape[1], low, high)
        gap = float((counted.cdf(values) - F.cdf(values)).abs().mean())
        near = NEAR + 1 / bins
        expected = f"levels within {near:.1%} of those of `fit`"
        require(gap <= near or name not in DISTINCT, expected, f"{gap:.1%} for {name}")
        expected = "finite values of distributions made of counts"
        require(not_finite(counted.icdf(LEVELS)) == 0, expected, f"NaN or infinity for {name}")
