"""The engine against a slow loop written straight from the paper, and against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cswf_core.interfaces import Dataset, Key, Space
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.schedules.constant import Constant
from tests.conftest import random_data, small_flow


def paper_cdf(sample: list[float], value: float) -> float:
    """Appendix C.2: find I with z_I ≤ z' ≤ z_{I+1}; F = (I−1)/N + (1/N)(z'−z_I)/(z_{I+1}−z_I)."""
    z = sorted(sample)
    N = len(z)
    if value < z[0]:
        return 0.0
    if value > z[-1]:
        return 1.0
    index = max(i for i in range(1, N + 1) if z[i - 1] <= value)
    if index == N:
        return (N - 1) / N
    return (index - 1) / N + (value - z[index - 1]) / (z[index] - z[index - 1]) / N


def paper_icdf(sample: list[float], level: float) -> float:
    """Appendix C.2: I = ⌊aN⌋, value z_I + (aN − I)(z_{I+1} − z_I); indices from 0, ends held."""
    z = sorted(sample)
    N = len(z)
    index = math.floor(level * N)
    if index >= N - 1:
        return z[-1]
    return z[index] + (level * N - index) * (z[index + 1] - z[index])


def paper_step(X, Y, D, YD, thetas_x, thetas_y, xi, eta):
    """One pass of Algorithm 1's outer loop. X: d×M, Y: l×M, D: d×N, YD: l×N, thetas: H rows."""
    M = X.shape[1]
    H = len(thetas_x)
    velocity = np.zeros_like(X)
    for theta_x, theta_y in zip(thetas_x, thetas_y, strict=True):
        q = [float(theta_x @ D[:, i] + xi * theta_y @ YD[:, i]) for i in range(D.shape[1])]
        p = [float(theta_x @ X[:, j] + xi * theta_y @ Y[:, j]) for j in range(M)]
        for j in range(M):
            derivative = p[j] - paper_icdf(q, paper_cdf(p, p[j]))
            velocity[:, j] -= derivative * theta_x / H
    return X + eta * velocity


def reference_run(flow, steps: int) -> np.ndarray:
    """Run Algorithm 1 by the slow loop, with the directions that the flow draws."""
    stage, data = flow.stages[0], flow.data
    sampler = flow.setup.sampler(stage)
    X = flow.particles.x.double().numpy().copy()
    one_hot = np.eye(max(1, len(data.classes)))
    conditional = flow.setup.condition_length > 0
    Y = one_hot[flow.particles.conditions.labels.numpy()].T if conditional else np.zeros((1, X.shape[1]))
    YD = one_hot[data.conditions.labels.numpy()].T if conditional else np.zeros((1, len(data)))
    xi = flow.parts.condition.amplifier
    for step in range(steps):
        thetas_x, thetas_y = [], []
        for theta in sampler.batches(flow.settings.seed, 0, step, check=True):
            scale = 1 if theta.scale is None else theta.scale
            theta_x = (theta.projection.dense() * scale).double().numpy()
            thetas_x += list(theta_x)
            if conditional:
                thetas_y += list(theta.theta_y.double().numpy() / xi)
            else:
                thetas_y += [np.zeros(1)] * len(theta_x)
        if conditional:
            lengths = np.linalg.norm(np.hstack([np.array(thetas_x), np.array(thetas_y)]), axis=1)
            np.testing.assert_allclose(lengths, 1, atol=1e-5)
        X = paper_step(X, Y, data.x.double().numpy(), YD, thetas_x, thetas_y, xi, stage.step_size)
    return X


@pytest.mark.parametrize(("M", "N", "H"), [(30, 40, 7), (40, 30, 130), (12, 12, 1), (1, 9, 5), (9, 3, 5)])
@pytest.mark.parametrize(
    "condition", [OneHot(amplifier=10.0), OneHot(amplifier=3.0, joint="equal"), NoCondition()]
)
def test_a_step_agrees_with_the_paper_s_loop(M, N, H, condition):
    flow = small_flow(
        random_data(n=N), condition=condition, schedule=Constant(steps=1, directions=H), count=M, seed=5
    )
    expected = reference_run(flow, 1)
    np.testing.assert_allclose(flow.run().x.numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("condition", [OneHot(amplifier=10.0), NoCondition()])
def test_several_steps_in_float32_agree_to_1e_5(condition):
    parts = {"condition": condition, "schedule": Constant(steps=4, directions=50, step_size=1.0)}
    flow, same = (small_flow(**parts, count=30, dtype=torch.float32) for _ in range(2))
    x = flow.run().x
    assert x.dtype == torch.float32
    np.testing.assert_allclose(x.numpy(), reference_run(same, 4), atol=1e-5)


@pytest.mark.parametrize(
    ("rank", "eta", "n", "directions"),
    [("paper", 3.0, 2000, 150), pytest.param("half", 0.6, 6000, 600, marks=pytest.mark.slow)],
)
def test_one_gaussian_flows_onto_another_as_the_closed_form_says(rank, eta, n, directions):
    """Isotropic Gaussians stay so: means and deviations approach the target's by the factor 1 − η/d a step."""
    d, steps = 3, 4
    mean, deviation = torch.tensor([[2.0], [-1.0], [0.5]], dtype=torch.float64), 0.4
    data = Dataset(x=mean + deviation * Key(1, "q").open(dtype=torch.float64).normal(d, n), space=Space((d,)))
    schedule = Constant(steps=steps, directions=directions, step_size=eta)
    flow = small_flow(data, cdf=Sorted(rank=rank), schedule=schedule, count=n)
    x = flow.run().x
    left = (1 - eta / d) ** steps
    torch.testing.assert_close(x.mean(dim=1), mean[:, 0] * (1 - left), atol=0.05, rtol=0)
    expected = torch.full((d,), deviation + left * (1 - deviation), dtype=torch.float64)
    torch.testing.assert_close(x.std(dim=1), expected, atol=0.05, rtol=0)


def test_in_one_dimension_a_step_of_1_is_the_optimal_map():
    data = Dataset(x=torch.linspace(-1, 1, 50, dtype=torch.float64)[None], space=Space((1,)))
    flow = small_flow(data, schedule=Constant(steps=1, directions=1, step_size=1.0), count=50)
    before = flow.particles.x[0].argsort()
    after = flow.run().x[0]
    assert torch.equal(after.argsort(), before)
    torch.testing.assert_close(after.sort().values, data.x[0])
