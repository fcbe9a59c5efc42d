"""The steps of a stage on CUDA: half precision, recorded as CUDA graphs."""

from __future__ import annotations

import torch

from cswf_core.flow.settings import Settings
from cswf_core.flow.stepper import ExactStepper, Stepper
from cswf_core.kernels import gpu


def stepper_for(settings: Settings, device: torch.device) -> type[Stepper]:
    """Return the stepper in half precision if it is wanted and can be had; float64 stays what it is."""
    if not (settings.half and settings.dtype == torch.float32 and gpu.usable(device)):
        return ExactStepper
    from cswf_core.flow.half.stepper import HalfStepper  # needs Triton

    return HalfStepper
