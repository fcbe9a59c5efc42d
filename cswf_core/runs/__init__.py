"""Runs on the disk: their folder, checkpoints, record and log, and their progress on a terminal."""

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
