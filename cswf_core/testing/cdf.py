"""Checks of CDF estimators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cswf_core.checks import CheckedCDF
from cswf_core.interfaces import CDFEstimator, FittedCDF, Key, Rows
from cswf_core.recipe import Recipe
from cswf_core.testing.flows import IN_A_FLOW, SHARED, recipe_with
from cswf_core.testing.generators import require_untouched
from cswf_core.testing.outcome import FaultError, Kit, SkipError, Subject
from cswf_core.testing.samples import POINTS, bare, samples

COUNT = 200
"""Values in a row."""

NEAR = 0.02
"""How far from the right value an estimate may be, in parts of the range of a row's values."""

ROUNDING = 1e-6
"""How far two ways to compute one number may be apart, in parts of the range of a row's values."""


def _rows(seed: int, count: int = COUNT) -> dict[str, Tensor]:
    """Return rows of values of every kind that an estimator meets, each 1×n in float64."""
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


class Distributions(Subject):
    """A CDF estimator."""

    kind = "cdf"

    def __init__(self, plugin: CDFEstimator) -> None:
        super().__init__(plugin)

    @cached_property
    def estimator(self) -> CheckedCDF:
        """The estimator behind its checks."""
        estimator: CheckedCDF = self.checked
        return estimator

    def fits(self, seed: int = 0) -> Iterator[tuple[str, Tensor, FittedCDF]]:
        """Yield the name of a row, its values (1×n) and their distribution."""
        for name, values in _rows(seed).items():
            yield name, values, self.estimator.fit(values.clone())

    def recipe(self, **sections: Any) -> Recipe:
        """Return the recipe of a short flow with the estimator."""
        return recipe_with("cdf", self.plugin, bare(samples(POINTS)), **sections)


def _range(values: Tensor) -> float:
    return max(float(values.max() - values.min()), 1e-6)


def _grid(values: Tensor) -> Tensor:
    """Return values from below a row's least to above its greatest, in rising order: 1×m."""
    reach = _range(values)
    low, high = float(values.min()) - 0.1 * reach, float(values.max()) + 0.1 * reach
    even = torch.linspace(low, high, 301, dtype=values.dtype)[None]
    return torch.cat([even, values], dim=1).sort(dim=1).values


LEVELS = torch.linspace(0, 1, 201, dtype=torch.float64)[None]


def a_cdf_never_falls(subject: Distributions) -> None:
    """F(z) grows with z, or stays: else particles would be put out of order."""
    for name, values, F in subject.fits():
        level = F.cdf(_grid(values))
        fall = -float(level.diff(dim=1).min())
        if not fall <= ROUNDING:
            raise FaultError("levels that never fall as z grows", f"a fall by {fall:.3g} for {name}")


def a_cdf_stays_within_0_and_1(subject: Distributions) -> None:
    """F(z) is a probability, also for z beyond all values."""
    for name, values, F in subject.fits():
        level = F.cdf(_grid(values))
        low, high = float(level.min()), float(level.max())
        if not (low >= -ROUNDING and high <= 1 + ROUNDING):
            raise FaultError("levels in [0, 1]", f"{low:.6g} … {high:.6g} for {name}")


def an_inverse_never_falls(subject: Distributions) -> None:
    """F⁻¹(a) grows with a, or stays."""
    for name, values, F in subject.fits():
        fall = -float(F.icdf(LEVELS).diff(dim=1).min())
        if not fall <= ROUNDING * _range(values):
            raise FaultError("values that never fall as the level grows", f"a fall by {fall:.3g} for {name}")


def an_inverse_stays_near_the_values(subject: Distributions) -> None:
    """F⁻¹(a) is finite, and not beyond the values by more than their range."""
    for name, values, F in subject.fits():
        answer, reach = F.icdf(LEVELS), _range(values)
        low, high = float(values.min()) - reach, float(values.max()) + reach
        if not bool(((answer >= low) & (answer <= high)).all()):
            got = f"{float(answer.min()):.4g} … {float(answer.max()):.4g}"
            raise FaultError(
                f"values around {float(values.min()):.4g} … {float(values.max()):.4g} for {name}", got
            )


def an_inverse_undoes_the_cdf(subject: Distributions) -> None:
    """F⁻¹(F(z)) is near z at the values themselves, where no two are equal."""
    for name, values, F in subject.fits():
        if name in DISTINCT:
            gap = float((F.icdf(F.cdf(values)) - values).abs().mean()) / _range(values)
            if not gap <= NEAR:
                raise FaultError(
                    f"F⁻¹(F(z)) within {NEAR:.0%} of the range from z, on average", f"{gap:.1%} for {name}"
                )


def transport_agrees_with_sorting(subject: Distributions) -> None:
    """F_q⁻¹(F_p(p)) takes the i-th smallest of p near the i-th smallest of q, for q of every kind."""
    p = Key(3, "particles").open(dtype=torch.float64).normal(1, COUNT)
    for name, q, F_q in subject.fits(seed=1):
        image = subject.estimator.transport(p.clone(), F_q)
        exact = q.sort(dim=1).values[:, p[0].argsort().argsort()]
        gap = float((image - exact).abs().mean()) / _range(q)
        if name == "equal values":
            gap = float((image - exact).abs().max())
        if not gap <= NEAR:
            raise FaultError(
                f"images within {NEAR:.0%} of the data's range from those by sorting, on average",
                f"{gap:.1%} towards {name}",
            )


def equal_sets_stay_in_place(subject: Distributions) -> None:
    """Where particles are where the data are, no two at one place, nothing is to move."""
    for name, values, F in subject.fits():
        if name not in DISTINCT:
            continue
        image = subject.estimator.transport(values.clone(), F)
        gap = float((image - values).abs().mean()) / _range(values)
        if not gap <= NEAR:
            raise FaultError(f"a displacement below {NEAR:.0%} of the range", f"{gap:.1%} for {name}")


def one_or_two_values_are_enough(subject: Distributions) -> None:
    """Distributions of one and of two values give finite levels, inverses and images."""
    estimator = subject.estimator
    for count in (1, 2):
        values = torch.tensor([[0.3, -0.4][:count]], dtype=torch.float64)
        F = estimator.fit(values.clone())
        answers = {
            "cdf": F.cdf(values),
            "icdf": F.icdf(LEVELS),
            "transport of many": estimator.transport(_rows(0)["normal values"], F),
            "transport of so many": estimator.transport(values.clone(), F),
        }
        for method, answer in answers.items():
            if not bool(torch.isfinite(answer).all()):
                raise FaultError("finite numbers", f"NaN or infinity from {method} with n = {count}")


def rows_do_not_mix(subject: Distributions) -> None:
    """A distribution is that of its row alone, whatever rows are fitted beside it."""
    rows = _rows(0)
    together = subject.estimator.fit(torch.cat(list(rows.values())))
    grid = torch.cat([_grid(values) for values in rows.values()])
    level = together.cdf(grid)
    for number, (name, values) in enumerate(rows.items()):
        alone = subject.estimator.fit(values.clone()).cdf(grid[number : number + 1])
        gap = float((alone - level[number]).abs().max())
        if not gap <= ROUNDING:
            raise FaultError("the same levels of a row alone and beside others", f"{gap:.3g} apart for {name}")


def numbers_are_those_of_the_values(subject: Distributions) -> None:
    """Levels, inverses and images are in float32 or float64 as the values are."""
    for dtype in (torch.float32, torch.float64):
        values = _rows(0)["normal values"].to(dtype)
        F = subject.estimator.fit(values.clone())
        answers = {
            "cdf": F.cdf(values),
            "icdf": F.icdf(LEVELS.to(dtype)),
            "transport": subject.estimator.transport(values.clone(), F),
        }
        for method, answer in answers.items():
            if answer.dtype != dtype:
                raise FaultError(f"{method} in {dtype}, as its input", f"{answer.dtype}")


def values_are_left_as_they_are(subject: Distributions) -> None:
    """`fit`, `cdf`, `icdf` and `transport` change none of the tensors that they are given."""
    values, levels = _rows(0)["normal values"], LEVELS.clone()
    before = values.clone()
    F = subject.estimator.fit(values)
    calls: dict[str, Callable[[], Tensor]] = {
        "cdf": lambda: F.cdf(values),
        "icdf": lambda: F.icdf(levels),
        "transport": lambda: subject.estimator.transport(values, F),
    }
    for method, call in calls.items():
        call()
        if not (torch.equal(values, before) and torch.equal(levels, LEVELS)):
            raise FaultError(
                f"`{method}` to leave its input alone (only `displace` works in place)", "other values"
            )


def global_generators_are_left_alone(subject: Distributions) -> None:
    """Estimates draw nothing from the generators of `random`, NumPy and PyTorch."""
    p = _rows(1)["normal values"]
    require_untouched(lambda: [subject.estimator.transport(p.clone(), F) for _, _, F in subject.fits()])


def displacing_in_place_agrees_with_transport(subject: Distributions) -> None:
    """`displace`, and `between` where it returns a map, give F_q⁻¹(F_p(p)) − p and the sums of its squares."""
    estimator = subject.estimator
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
    if not (gap <= ROUNDING and lost <= ROUNDING * COUNT):
        raise FaultError(
            f"`{method}` to give what `transport` gives, less p, and the sums of its squares",
            f"{gap:.1e} of the largest apart, sums {lost:.1e}, towards {name}",
        )


def counts_make_the_same_distributions(subject: Distributions) -> None:
    """`of_counts` with the counts of values in `bins` equal bins agrees with `fit` to the same values."""
    estimator, bins = subject.estimator, subject.estimator.bins
    if bins is None:
        raise SkipError("it has no `bins`, so it takes no part in online learning")
    for name, values, F in subject.fits():
        low, high = values.amin(dim=1), values.amax(dim=1)
        edges = low[:, None] + (high - low)[:, None] * torch.linspace(0, 1, bins + 1, dtype=values.dtype)
        below = (values[:, :, None] < edges[:, None, :]).sum(dim=1)
        below[:, -1] = values.shape[1]
        counted = estimator.of_counts(below.int(), values.shape[1], low, high)
        gap = float((counted.cdf(values) - F.cdf(values)).abs().mean())
        if name in DISTINCT and not gap <= NEAR + 1 / bins:
            raise FaultError(f"levels within {NEAR + 1 / bins:.1%} of those of `fit`", f"{gap:.1%} for {name}")
        if not bool(torch.isfinite(counted.icdf(LEVELS)).all()):
            raise FaultError("finite values of distributions made of counts", f"NaN or infinity for {name}")


KIT = Kit(
    Distributions,
    (
        *SHARED,
        a_cdf_never_falls,
        a_cdf_stays_within_0_and_1,
        an_inverse_never_falls,
        an_inverse_stays_near_the_values,
        an_inverse_undoes_the_cdf,
        transport_agrees_with_sorting,
        equal_sets_stay_in_place,
        one_or_two_values_are_enough,
        rows_do_not_mix,
        numbers_are_those_of_the_values,
        values_are_left_as_they_are,
        global_generators_are_left_alone,
        displacing_in_place_agrees_with_transport,
        counts_make_the_same_distributions,
        *IN_A_FLOW,
    ),
)
