"""The arithmetic of the modules above as Triton kernels, for CUDA devices.

Nothing imports these modules where there is no such device. The tests run them in Triton's interpreter, too.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache

import torch


@lru_cache
def _triton_is_there() -> bool:
    return importlib.util.find_spec("triton") is not None


def usable(device: torch.device) -> bool:
    """Say whether kernels can run on a device: it is a CUDA one, and Triton is installed."""
    return device.type == "cuda" and _triton_is_there()
