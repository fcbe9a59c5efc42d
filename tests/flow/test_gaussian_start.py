"""Particles that begin as a Gaussian with the data's mean and covariance."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.flow import Flow
from cswf_core.flow.gaussian import Gaussian, regression_of
from cswf_core.flow.settings import Settings
from cswf_core.interfaces import Conditions, Dataset, Key, Masked, Space
from cswf_core.recipe import build_flow, load_recipe
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.super_resolution import SuperResolution
from cswf_plugins.coordinates.plain import Plain
from cswf_plugins.coordinates.whitened import Whitened
from tests.conftest import random_data, small_flow
from tests.plugins.test_coordinates import basis, smooth

MANY = 20_000
IMAGES = Space((2, 3, 3))


def begun(data: Dataset, **parts) -> Flow:
    parts = {"condition": NoCondition(), "count": MANY, **parts}
    return small_flow(data, gaussian=True, **parts)


def correlated(d: int = 6, n: int = 500) -> Dataset:
    draw = Key(1, "x").open(dtype=torch.float64)
    return Dataset(x=draw.normal(d, d) @ draw.normal(d, n) + draw.normal(d, 1), space=Space((d,)))


def agree(x: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Check moments of many particles within a few times their error."""
    scale = covariance.diagonal().sqrt()
    assert float(((x.mean(dim=1) - mean) / scale).abs().max()) < 5 / x.shape[1] ** 0.5
    assert float(((torch.cov(x) - covariance) / scale[:, None] / scale).abs().max()) < 8 / x.shape[1] ** 0.5


@pytest.mark.parametrize("coordinates", [None, Plain(), Whitened()], ids=["none", "plain", "whitened"])
def test_first_particles_have_the_data_s_mean_and_covariance(coordinates):
    data = Dataset(x=smooth(IMAGES), space=IMAGES) if isinstance(coordinates, Whitened) else correlated()
    x = begun(data, coordinates=coordinates).particles.x
    agree(x, data.x.mean(dim=1), torch.cov(data.x))
    assert float((torch.cov(x) - torch.eye(len(x))).abs().max()) > 0.5  # unlike noise
    kurtosis = ((x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True)).pow(4).mean(dim=1)
    torch.testing.assert_close(kurtosis, torch.full((len(x),), 3.0).double(), atol=0.25, rtol=0)


def test_the_noise_in_bins_belongs_to_the_data():
    width = 3.0
    data = attrs.evolve(correlated(), bin_width=width)
    x = begun(data).particles.x
    agree(x, data.x.mean(dim=1) + width / 2, torch.cov(data.x) + torch.eye(6) * width**2 / 12)


def test_the_first_particles_do_not_depend_on_how_many_follow_nor_on_the_scale():
    few, many = (begun(correlated(), count=count, scale=scale) for count, scale in ((20, 1.0), (90, 7.0)))
    torch.testing.assert_close(many.particles.x[:, :20], few.particles.x)


def test_with_labels_each_class_begins_around_its_mean_and_without_a_condition_it_does_not():
    data = random_data(d=4, n=300)
    flow = begun(data, condition=OneHot())
    labels = flow.particles.conditions.labels
    means = torch.stack([data.x[:, data.conditions.labels == c].mean(dim=1) for c in range(3)], dim=1)
    within = torch.cov(data.x - means[:, data.conditions.labels])
    for c in range(3):
        agree(flow.particles.x[:, labels == c], means[:, c], within)
    flow = begun(data, condition=NoCondition())
    assert flow.setup.gaussian.mean.shape == (4, 1)
    agree(flow.particles.x, data.x.mean(dim=1), torch.cov(data.x))


def test_a_class_without_data_begins_at_the_mean_of_all():
    data = random_data(d=4, n=300)
    labels = data.conditions.labels * 2
    lacking = attrs.evolve(data, conditions=Conditions(labels=labels), classes=tuple("abcde"))
    gaussian = begun(lacking, condition=OneHot(), count=50).setup.gaussian
    noise = torch.zeros(4, 6, dtype=torch.float64)
    x = gaussian.of_noise(noise, torch.arange(6))  # 1 and 3 are empty, and 5 was never heard of
    everything = data.x.mean(dim=1)
    for label in (1, 3, 5):
        torch.testing.assert_close(x[:, label], everything)
    for label in (0, 2, 4):
        own = data.x[:, data.conditions.labels == label // 2].mean(dim=1)
        torch.testing.assert_close(x[:, label], own)
    torch.testing.assert_close(gaussian.of_noise(noise), everything[:, None].expand(-1, 6))


@pytest.mark.parametrize("condition", [NoCondition(), OneHot()])
def test_particles_that_are_carried_along_begin_so_too(condition):
    data = random_data(d=4, n=300)
    flow = begun(data, condition=condition, count=50, offline=MANY)
    x, labels = flow.particles.x[:, 50:], flow.particles.conditions.labels
    if labels is None:
        agree(x, data.x.mean(dim=1), torch.cov(data.x))
        return
    for c in range(3):
        own = data.x[:, data.conditions.labels == c]
        torch.testing.assert_close(x[:, labels[50:] == c].mean(dim=1), own.mean(dim=1), atol=0.06, rtol=0)


def test_seen_pixels_are_in_place():
    data = Dataset(x=smooth(IMAGES), space=IMAGES)
    flow = begun(data, condition=Mask(amplifier=2.0), count=40)
    mask = flow.observation.mask[:, 0] if flow.observation.mask.ndim == 2 else flow.observation.mask
    assert torch.equal(flow.particles.x[mask], 2 * flow.originals()[mask])
    assert torch.equal(flow.particles.x[~mask], begun(data, condition=Mask(), count=40).particles.x[~mask])


@pytest.mark.parametrize("seen", ["pixels", "block means"])
def test_the_rest_follows_what_is_seen(seen):
    """Many completions of one image have the mean and covariance that a Gaussian has given a part of it."""
    space = Space((1, 4, 4))
    data = Dataset(x=smooth(space), space=space)
    gaussian = begun(data, count=10).setup.gaussian
    observation = Masked(torch.arange(16) % 3 == 0)
    if seen == "block means":
        observation = SuperResolution(size=2).observation(data, data.conditions, Key(0, "o").open())
    covariance, mean = torch.cov(data.x), data.x.mean(dim=1)
    S = observation.seen(torch.eye(16, dtype=torch.float64))
    B = covariance @ S @ torch.linalg.pinv(S @ covariance @ S, rtol=1e-9)
    noise = Key(0, "noise").open(dtype=torch.float64).normal(16, 50_000)
    x = regression_of(gaussian, observation, 1.0)(gaussian.of_noise(noise), S @ data.x[:, :1])
    torch.testing.assert_close(S @ x, (S @ data.x[:, :1]).expand(-1, 50_000))
    free = ~observation.mask[:, 0] if seen == "pixels" else torch.ones(16, dtype=torch.bool)
    rest = covariance - B @ S @ covariance
    agree(x[free], (mean + B @ S @ (data.x[:, 0] - mean))[free], rest[free][:, free])


def test_of_few_data_no_particle_begins_as_a_copy():
    """With as many data as dimensions, the rest of an image would follow a part of it exactly."""
    few = Dataset(x=smooth(IMAGES, 18), space=IMAGES)
    flow = begun(few, condition=Mask(), count=2000)
    assert regression_of(flow.setup.gaussian, flow.observation, 1.0) is None
    hidden = ~flow.observation.mask[:, 0]
    x, own = flow.particles.x[hidden], flow.originals()[hidden]
    assert float((x - own).square().mean().sqrt()) > 0.5 * float(few.x.std(dim=1).mean())
    assert regression_of(attrs.evolve(flow.setup.gaussian, samples=90), flow.observation, 1.0) is not None


def test_the_rest_does_not_follow_where_it_cannot():
    data = Dataset(x=smooth(IMAGES), space=IMAGES)
    gaussian = begun(data, count=10).setup.gaussian
    one, each = Masked(torch.arange(18) < 9), Masked(torch.rand(18, 10) < 0.5)
    assert regression_of(gaussian, one, 1.0) is not None
    for absent in ((None, one, 1.0), (gaussian, None, 1.0), (gaussian, each, 1.0), (gaussian, one, 0.0)):
        assert regression_of(*absent) is None
    assert regression_of(attrs.evolve(gaussian, root=None), one, 1.0) is None
    flow = begun(data, condition=Mask(amplifier=0.0))
    hidden = ~flow.observation.mask[:, 0]
    agree(flow.particles.x[hidden], data.x.mean(dim=1)[hidden], torch.cov(data.x)[hidden][:, hidden])


def test_a_large_space_needs_coordinates_that_know_the_covariance(monkeypatch):
    monkeypatch.setattr("cswf_core.flow.gaussian.LARGEST_COVARIANCE", IMAGES.dimension - 1)
    data = Dataset(x=smooth(IMAGES), space=IMAGES)
    for coordinates in (None, Plain()):
        with pytest.raises(RunError, match="a covariance of 18 dimensions takes too large a matrix: choose"):
            begun(data, coordinates=coordinates)
    flow = begun(data, coordinates=Whitened())
    assert flow.setup.gaussian.root is None
    B = basis(flow.setup.W)
    agree(B @ flow.particles.x, B @ data.x.mean(dim=1), torch.diag((B @ data.x).var(dim=1)))
    monkeypatch.setattr("cswf_core.flow.gaussian.LARGEST_COVARIANCE", IMAGES.dimension)
    assert begun(data).setup.gaussian.root.shape == (18, 18)


@pytest.mark.parametrize("largest", [4096, 1])
def test_one_datum_has_no_covariance(largest, monkeypatch):
    monkeypatch.setattr("cswf_core.flow.gaussian.LARGEST_COVARIANCE", largest)
    with pytest.raises(RunError, match="a covariance needs two data or more: leave out the start"):
        begun(correlated(n=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [2, 5, 50])
def test_few_data_and_pixels_that_never_change_leave_a_root(n, dtype):
    x = smooth(IMAGES, n)
    x[:6] = -1.0
    flow = begun(Dataset(x=x, space=IMAGES), count=500, dtype=dtype)
    assert torch.isfinite(flow.particles.x).all()
    torch.testing.assert_close(flow.particles.x[:6], torch.full((6, 500), -1.0, dtype=dtype), atol=0.02, rtol=0)


def test_data_that_are_all_alike_are_where_particles_begin():
    data = Dataset(x=torch.full((5, 20), 0.25), space=Space((5,)))
    torch.testing.assert_close(begun(data, count=9).particles.x, torch.full((5, 9), 0.25).double())


@pytest.mark.parametrize("labels", [None, torch.arange(40) % 3])
def test_a_gaussian_made_of_its_tensors_is_the_same(labels):
    x = correlated(n=40).x
    gaussian = Gaussian.of_data(x, 0.0, None, Settings(), labels)
    again = Gaussian.of_tensors({name: part.clone() for name, part in gaussian.tensors().items()}, None, x)
    noise = Key(0, "noise").open(dtype=torch.float64).normal(6, 40)
    assert torch.equal(again.of_noise(noise, labels), gaussian.of_noise(noise, labels))


def test_a_recipe_can_ask_for_it(monkeypatch):
    recipe = load_recipe("digits", ["particles.start=gaussian", "particles.count=50"])
    assert build_flow(recipe, device="cpu").setup.gaussian.mean.shape == (64, 11)
    monkeypatch.setattr("cswf_core.flow.gaussian.LARGEST_COVARIANCE", 63)
    remedy = r"another start \(particles\.start\) or, unless a part of the image is seen, coordinates that know"
    with pytest.raises(RunError, match=remedy):
        build_flow(recipe, device="cpu")


def test_a_scale_that_it_does_not_have_is_told(caplog):
    build_flow(load_recipe("digits", ["particles.start=gaussian", "particles.count=50"]), device="cpu")
    assert "particles.scale" not in caplog.text
    changed = load_recipe("digits", ["particles.start=gaussian", "particles.count=50", "particles.scale=0.5"])
    build_flow(changed, device="cpu")
    assert "particles.scale has no effect with particles.start: gaussian" in caplog.text


def test_few_data_of_each_class_do_not_become_particles_themselves():
    data = attrs.evolve(
        correlated(n=10), conditions=Conditions(labels=torch.arange(10)), classes=tuple("abcdefghij")
    )
    x = begun(data, condition=OneHot(), count=200).particles.x
    assert float(torch.cdist(x.T, data.x.T).amin(dim=1).median()) > 0.1


def test_a_source_that_says_where_particles_begin_and_a_gaussian_are_refused():
    with pytest.raises(RunError, match=r"leave out the start \(particles\.start\)"):
        build_flow(load_recipe("toy-joint", ["particles.start=gaussian"]), device="cpu")
