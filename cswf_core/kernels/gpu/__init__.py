"""The arithmetic of the other modules as Triton kernels, for CUDA devices.

Without such a device, nothing imports these modules but tests, which run them in Triton's interpreter.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache

import torch

OLDEST_CAPABILITY = (8, 0)
"""Compute capability of the oldest cards that the kernels are made for."""


@lru_cache
def usable(device: torch.device) -> bool:
    """Say whether kernels can run on a device: an NVIDIA card that is not too old, and Triton is installed."""
    if device.type != "cuda":
        return False
    installed = torch.version.hip is None and importlib.util.find_spec("triton") is not None
    return installed and torch.cuda.get_device_capability(device) >= OLDEST_CAPABILITY
