"""Numbers that fit in shape and are wrong all the same: refused by name, where they first come."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch

from cswf_core import checks
from cswf_core.errors import DataError, PluginError
from cswf_core.interfaces import (
    BIN,
    CDFEstimator,
    Conditions,
    Dataset,
    DatasetSource,
    FittedCDF,
    Key,
    Space,
)
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.cdfs.spline import Spline
from cswf_plugins.schedules.constant import Constant
from tests.checks.parts import OWNERS, named, refused, variant
from tests.conftest import random_data, small_flow
from tests.plugins.conftest import GOOD


@attrs.frozen(eq=False)
class Fitted(FittedCDF):
    """Uniform between the ends of each row, or what is made of that."""

    low: torch.Tensor
    width: torch.Tensor
    bend: object
    bend_back: object

    def cdf(self, z):
        return self.bend((z - self.low) / self.width)

    def icdf(self, a):
        return self.low + self.width * self.bend_back(a)


def same(values):
    return values.clamp(0, 1)


@attrs.frozen
class Bent(CDFEstimator):
    """An estimator whose F, and F⁻¹, are bent by functions of [0, 1]."""

    bend: object = same
    bend_back: object = same

    def fit(self, values):
        low, high = values.amin(dim=1, keepdim=True), values.amax(dim=1, keepdim=True)
        return Fitted(low, high - low, self.bend, self.bend_back)


def dip(values):
    """Rises, but for a dip in the middle."""
    return torch.where((values > 0.4) & (values < 0.6), 0.1, same(values))


@pytest.mark.parametrize(
    ("cdf", "complaint"),
    [
        (Bent(bend=dip), r"cdf must return numbers that never fall from left to right, got a fall by 0\.\d+"),
        (Bent(bend=lambda u: 1 - same(u)), "cdf must return numbers that never fall from left to right"),
        (Bent(bend=lambda u: 1.5 * same(u)), r"cdf must return numbers in \[0, 1\], got 0 … 1\.5"),
        (Bent(bend=lambda u: same(u) - 0.5), r"cdf must return numbers in \[0, 1\], got -0\.5 … 0\.5"),
        (Bent(bend=lambda u: u / 0), "cdf must return finite numbers"),
        (Bent(bend=lambda u: u[:, 1:]), r"cdf must return a \d+×33 tensor"),
        (Bent(bend_back=dip), "icdf must return numbers that never fall from left to right"),
        (Bent(bend_back=lambda a: a / 0), "icdf must return finite numbers"),
        (Bent(bend_back=lambda a: a.nonsense), "icdf raised AttributeError"),
    ],
    ids=["dip", "falls", "above", "below", "infinite", "shape", "back", "back infinite", "error"],
)
def test_a_function_that_is_no_distribution_is_refused_by_name(cdf, complaint):
    refused(complaint, cdf=cdf)


@pytest.mark.parametrize(
    "cdf",
    [Bent(), Sorted(), Histogram(), Histogram(tail=0.05), Spline()],
    ids=lambda cdf: f"{type(cdf).__name__}{getattr(cdf, 'tail', '')}",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_distributions_pass_also_of_values_that_are_all_the_same(cdf, dtype):
    data = random_data()
    same_everywhere = attrs.evolve(data, x=torch.ones_like(data.x))
    few = Constant(steps=2, directions=20)
    for each in (data, same_everywhere, attrs.evolve(data, x=1e-30 * data.x)):
        if not (isinstance(cdf, Bent) and each is not data):
            assert torch.isfinite(small_flow(each, cdf=cdf, dtype=dtype, schedule=few).run().x).all()


@pytest.mark.parametrize(
    "shape", [[1, 8, 8], (1, 8, 8), torch.Size((1, 8, 8)), tuple(np.array([1, 8, 8]))], ids=str
)
def test_a_space_takes_any_sequence_of_whole_numbers(shape):
    space = Space(shape)
    assert space.shape == (1, 8, 8)
    assert all(type(size) is int for size in space.shape)
    assert space == Space((1, 8, 8))
    assert hash(space) == hash(Space((1, 8, 8)))


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        ((8, 8), r"the space of images has channels too: write \(1, 8, 8\), not \(8, 8\)"),
        ("8", "a space is .* got '8'"),
        (8, "a space is .* got 8"),
        ((1, 0, 8), r"a space is .* got \(1, 0, 8\)"),
        ((1, 8, 8, 8), "a space is"),
        ((1.0, 8.0, 8.0), "a space is"),
        ((True, 8, 8), "a space is"),
        ((-3,), "a space is"),
        ((), "a space is"),
        (None, "a space is"),
    ],
    ids=str,
)
def test_what_is_no_space_gets_a_sentence(shape, advice):
    with pytest.raises(DataError, match=advice):
        Space(shape)


def loaded(data: Dataset) -> Dataset:
    source = variant(DatasetSource, load=lambda self, draw: data)()
    return checks.checked(source, OWNERS["dataset"]).load(Key(0, "data").open())


def pictures(low: float, high: float, bin_width: float = 0.0, **more: object) -> Dataset:
    return Dataset(torch.linspace(low, high, 12).view(4, 3), Space((1, 2, 2)), bin_width=bin_width, **more)


@pytest.mark.parametrize(
    ("data", "limits"),
    [
        (pictures(0, 255), "0 … 255"),
        (pictures(-1.5, 0.5), "-1.5 … 0.5"),
        (pictures(-1, 1, BIN), "-1 … 1"),
        (pictures(-1, 1.1), "-1 … 1.1"),
    ],
    ids=["bytes", "dark", "bins", "bright"],
)
def test_pixels_outside_their_range_are_refused_with_the_rule(data, limits):
    with pytest.raises(PluginError, match=r"pixels in \[−1, 1\)") as error:
        loaded(data)
    named(error, "dataset")
    assert limits in str(error.value)
    assert "a byte v is v/128 − 1" in str(error.value)


FAR = Dataset(torch.full((4, 3), 900.0), Space((4,)))


@pytest.mark.parametrize("data", [pictures(-1, 1 - BIN, BIN), pictures(-1, 1), pictures(-1 - 1e-7, 0.3), FAR])
def test_pixels_in_their_range_and_points_anywhere_pass(data):
    assert loaded(data) is data


def test_labels_need_the_names_of_their_classes():
    labelled = pictures(-1, 0.9, conditions=Conditions(labels=torch.tensor([0, 1, 0])))
    with pytest.raises(
        PluginError, match=r"load must return the names of its classes beside labels.* got none"
    ):
        loaded(labelled)
    assert loaded(attrs.evolve(labelled, classes=("cat", "dog")))


def test_a_recipe_names_the_plugin_and_the_parameter_that_its_schedule_needs(cswf, tmp_path):
    (tmp_path / "axes.py").write_text(GOOD.replace("{name}", "axis"))
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "data: digits\nschedule: {use: pyramid, entries: ['(4×4) [3]', '(8×8) [5]'], steps: 2, directions: 8}\n"
        "projection:\n  use: axis\n"
    )
    refusal = cswf.refusal("check", recipe, "--plugins-dir", tmp_path)
    assert refusal.startswith(
        f"{recipe}:4:8: projection 'axis' (axes.py): the schedule asks for patches of 3×3"
    )
    assert 'give the class Axis the line patch: int = parameter("…", default=3)' in refusal
    dilated = recipe.read_text().replace("[5]", "[5] dilation=2").replace("axis", "data-covariance")
    recipe.write_text(dilated)
    refusal = cswf.refusal("check", recipe)
    assert "has no parameter 'dilation'" in refusal
    assert 'the line dilation: int = parameter("…", default=2)' in refusal
