"""Triton kernels without a GPU: import this first, and they run in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined

interpreter = pytest.importorskip(
    "triton.runtime.interpreter", reason="Triton is not installed: the kernels for GPUs are not tested"
)
_patch = interpreter._patch_lang_tensor


def _patch_with_indices(tensor, scope):
    """Scalars are arrays of one number there, which NumPy 2.4 and newer do not take for an index."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


interpreter._patch_lang_tensor = _patch_with_indices

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
