"""The arithmetic of the modules above as Triton kernels, for CUDA devices.

Nothing imports these modules where there is no such device. The tests run them in Triton's interpreter, too.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache

import torch

OLDEST = (8, 0)
"""Compute capability of the oldest cards that the kernels are made for."""


def usable(device: torch.device) -> bool:
    """Say whether kernels can run on a device: an NVIDIA card that is not too old, and Triton is installed."""
    return device.type == "cuda" and _usable(device)


@lru_cache
def _usable(device: torch.device) -> bool:
    there = torch.version.hip is None and importlib.util.find_spec("triton") is not None
    return there and torch.cuda.get_device_capability(device) >= OLDEST
