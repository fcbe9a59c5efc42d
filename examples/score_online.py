"""Teach digits 0–4, then 5–9, with the recipe `online-digits`, and ask nearest neighbours what both are.

Arguments are changes to the recipe: `python examples/score_online.py online.sets=16 cdf.bins=64`.
"""

import sys
import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

import cswf_core

digits = load_digits()
real = (digits.data + 0.5) * (2 / 17) - 1  # the middle of each grey level, in [−1, 1]
nearest = KNeighborsClassifier(5).fit(real, digits.target)
theta = np.random.default_rng(0).normal(size=(64, 1000))
theta /= np.linalg.norm(theta, axis=0)
levels = np.linspace(0.001, 0.999, 500)


def sliced(generated, among):
    """SW₂ along 1,000 fresh directions."""
    ends = [np.quantile(x @ theta, levels, axis=0) for x in (generated, among)]
    return np.sqrt(np.mean((ends[0] - ends[1]) ** 2))


flow = cswf_core.build_flow("online-digits", sys.argv[1:], device="cpu")
began = time.perf_counter()
for state in flow:
    last = state.step == state.stage.steps
    if last:
        samples = flow.samples()
        generated = samples.x.T.numpy()
        among = real[np.isin(digits.target, [int(name) for name in samples.classes])]
        said = f"step {state.total_step}: {len(generated)} samples, {time.perf_counter() - began:.1f} s"
        if samples.conditions.labels is not None:
            asked = np.array([int(name) for name in samples.classes])[samples.conditions.labels.numpy()]
            right = nearest.predict(generated) == asked
            new = f", 5–9 {right[asked > 4].mean():.1%}" if (asked > 4).any() else ""
            said += f", right of 0–4 {right[asked < 5].mean():.1%}{new}"
        print(f"{said}, sliced distance {sliced(generated, among):.4f}")
