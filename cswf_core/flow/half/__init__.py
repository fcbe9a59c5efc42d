"""The steps of a stage on CUDA: half precision, recorded as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cswf_core.flow.settings import Settings
from cswf_core.flow.stage import StageSetup
from cswf_core.flow.stepper import ExactStepper, Stepper
from cswf_core.kernels import gpu


def stepper_for(settings: Settings, device: torch.device) -> Callable[[StageSetup], Stepper]:
    """Return the stepper in half precision if it is wanted and can be had; float64 stays what it is."""
    if not (settings.half and settings.dtype == torch.float32 and gpu.usable(device)):
        return ExactStepper
    return half_stepper


def half_stepper(setup: StageSetup) -> Stepper:
    """Return a stepper in half precision."""
    from cswf_core.flow.half.stepper import HalfStepper  # needs Triton

    return HalfStepper(setup)
