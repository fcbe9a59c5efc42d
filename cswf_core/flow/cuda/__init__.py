"""The steps of a stage on CUDA: half precision, recorded as CUDA graphs."""

from __future__ import annotations

import torch

from cswf_core.flow.exact_plan import ExactPlan
from cswf_core.flow.plan import Plan
from cswf_core.flow.settings import Settings
from cswf_core.kernels import gpu


def plan_for(settings: Settings, device: torch.device) -> type[Plan]:
    """Return the plan in half precision if that is wanted and can be had; float64 stays what it is."""
    if not (settings.half and settings.dtype == torch.float32 and gpu.usable(device)):
        return ExactPlan
    from cswf_core.flow.cuda.plan import HalfPlan  # needs Triton

    return HalfPlan
