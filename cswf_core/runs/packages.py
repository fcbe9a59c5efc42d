"""The packages that a result may depend on."""

from __future__ import annotations

PACKAGES = (
    "cswf",
    "torch",
    "torchvision",
    "numpy",
    "pluggy",
    "PyYAML",
    "attrs",
    "clean-fid",
    "safetensors",
    "click",
    "rich",
    "scikit-learn",
    "pillow",
    "scipy",
    "triton",
)
"""Distributions whose versions are recorded, where they are installed."""
