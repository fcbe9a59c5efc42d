"""What a plugin returns is checked here, where it enters the engine.

Every complaint names the plugin, its distribution and version, what the contract expects and what came.
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs
import pluggy
import torch
from torch import Tensor

from cswf_core.errors import CswfError, PluginError
from cswf_core.flow.memory import is_out_of_memory
from cswf_core.interfaces import (
    Conditions,
    DenseProjection,
    Figure,
    Owner,
    Projection,
    ProjectionSampler,
    Result,
    Stage,
)

UNIT_TOLERANCE = 1e-3
"""How far a direction's length may be from 1."""


@contextmanager
def calling(owner: Owner, method: str) -> Iterator[None]:
    """Turn whatever a plugin's code raises into an error that names the plugin and the line."""
    try:
        yield
    except CswfError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        raise PluginError(
            f"{owner}: {method} raised {type(error).__name__}: {error}{_line_in_plugin(error)}"
        ) from error


def _line_in_plugin(error: BaseException) -> str:
    """Return the line of the plugin's own file; nothing if it never got there, as with a wrong signature."""
    core, door = Path(__file__).parents[1], Path(pluggy.__file__).parent
    frames = [(Path(f.filename), f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    theirs = [f for f in frames if not (f[0].is_relative_to(core) or f[0].is_relative_to(door))]
    lines = [line for file, line in theirs if file == theirs[0][0]]
    return f" ({theirs[0][0]}:{lines[-1]})" if lines else ""


def fault(owner: Owner, method: str, expected: str, got: str) -> PluginError:
    """Return the error for a broken contract."""
    return PluginError(f"{owner}: {method} must return {expected}, got {got}")


def check_tensor(
    value: object,
    owner: Owner,
    method: str,
    *,
    shape: tuple[int, ...],
    like: Tensor,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return `value` if it is a tensor of that shape, on the device and in the dtype of `like`."""
    dtype = like.dtype if dtype is None else dtype
    expected = f"a {'×'.join(map(str, shape))} tensor of {short(dtype)} on {like.device}"
    if not isinstance(value, Tensor):
        raise fault(owner, method, expected, f"{type(value).__name__}")
    if tuple(value.shape) != shape or value.dtype != dtype or value.device != like.device:
        got = f"{'×'.join(map(str, value.shape)) or 'scalar'} of {short(value.dtype)} on {value.device}"
        raise fault(owner, method, expected, got)
    return value


def check_finite(value: Tensor, owner: Owner, method: str) -> Tensor:
    """Return `value` if it has no NaN and no infinity. Reads one number back from the device."""
    # What is not finite makes the sum so, and a sum takes a thirtieth of the time. It may also be too large.
    bad = 0 if math.isfinite(float(value.sum())) else int((~torch.isfinite(value)).sum())
    if bad:
        raise fault(owner, method, "finite numbers", f"{bad} of {value.numel()} that are NaN or infinite")
    return value


def check_unit(rows: Tensor, owner: Owner, method: str) -> Tensor:
    """Return `rows` (H×d) if each has length 1. Reads one number back from the device."""
    check_finite(rows, owner, method)
    error = (torch.linalg.vector_norm(rows, dim=1) - 1).abs()
    if bool((error > UNIT_TOLERANCE).any()):
        worst = int(error.argmax())
        length = float(torch.linalg.vector_norm(rows[worst]))
        raise fault(owner, method, "directions of unit length", f"length {length:.4g} in row {worst}")
    return rows


def check_projection(
    value: object, owner: Owner, *, shape: tuple[int, int], like: Tensor, values: bool
) -> Projection:
    """Return a projection sampler's answer as an operator with H×d = `shape`.

    With `values`, lengths are checked too, and for an operator that `project` and `adjoint` are adjoint.
    """
    if isinstance(value, Tensor):
        check_tensor(value, owner, "sample", shape=shape, like=like)
        projection: Projection = DenseProjection(value)
    elif isinstance(value, Projection):
        if tuple(value.shape) != shape:
            raise fault(owner, "sample", f"a {shape[0]}×{shape[1]} operator", f"shape {tuple(value.shape)}")
        projection = value
    else:
        raise fault(owner, "sample", "a tensor or a Projection", type(value).__name__)
    if values:
        with calling(owner, "dense"):
            theta = projection.dense()
        check_unit(check_tensor(theta, owner, "dense", shape=shape, like=like), owner, "sample")
        if not isinstance(projection, DenseProjection):
            _check_operator(projection, theta, owner)
    return projection


def _check_operator(projection: Projection, theta: Tensor, owner: Owner) -> None:
    """Compare `project` and `adjoint` with the dense matrix, on the directions themselves."""
    H, d = theta.shape
    expected = theta @ theta.T
    pairs = (("project", projection.project(theta.T.contiguous()), expected),
             ("adjoint", projection.adjoint(expected), theta.T @ expected))  # fmt: skip
    for method, got, wanted in pairs:
        check_tensor(got, owner, method, shape=tuple(wanted.shape), like=theta)
        if not torch.allclose(got, wanted, rtol=1e-3, atol=1e-3):
            gap = float((got - wanted).abs().max())
            raise fault(owner, method, f"what dense() ({H}×{d}) gives", f"values {gap:.3g} apart")


def check_transport(value: object, owner: Owner, *, p: Tensor, values: bool) -> Tensor:
    """Return a CDF estimator's transport of p (H×M)."""
    image = check_tensor(value, owner, "transport", shape=tuple(p.shape), like=p)
    return check_finite(image, owner, "transport") if values else image


def check_groups(value: object, owner: Owner, conditions: Conditions) -> None:
    """Check a condition's groups: a number for each sample, and a condition for each number."""
    expected = (
        f"a whole number for each of {len(conditions)} samples, and a Conditions with one for each number"
    )
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Conditions)):
        raise fault(owner, "groups", expected, type(value).__name__)
    index, classes = value
    whole = isinstance(index, Tensor) and index.dtype in (torch.uint8, torch.int16, torch.int32, torch.int64)
    if not whole or tuple(index.shape) != (len(conditions),):
        raise fault(owner, "groups", expected, f"{getattr(index, 'shape', type(index).__name__)}")
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < len(classes):
        raise fault(
            owner, "groups", expected, f"numbers up to {int(index.max())} and {len(classes)} conditions"
        )


def check_sampler(value: object, owner: Owner) -> ProjectionSampler:
    """Return a sampler that has seen its stage."""
    if not isinstance(value, ProjectionSampler):
        raise fault(owner, "fitted", "a ProjectionSampler", type(value).__name__)
    return value


def check_together(value: object, owner: Owner) -> int:
    """Return how many directions a sampler draws at once."""
    if not isinstance(value, int) or value < 1:
        raise fault(owner, "together", "a whole number, 1 or more", repr(value))
    return value


def check_result(result: object, owner: Owner) -> Result:
    """Return a metric's answer if its scores are finite numbers by name."""
    if not isinstance(result, Result):
        raise fault(owner, "compute", "a Result", repr(result))
    if not isinstance(result.protocol, str) or not all(isinstance(note, str) for note in result.notes):
        raise fault(owner, "compute", "texts as protocol and notes", f"{result.protocol!r}, {result.notes!r}")
    for name, figure in result.figures.items():
        fine = isinstance(figure, Figure) and re.fullmatch(r"[a-z0-9-]+", str(name)) is not None
        if not fine or not all(row.dtype == torch.uint8 and row.ndim == 4 for row in figure.rows):
            raise fault(owner, "compute", "figures with rows of n×C×H×W bytes, named like-this", repr(name))
    scores, details = _numbers(result.scores, owner), _numbers(result.details, owner)
    return attrs.evolve(result, scores=scores, details=details)


def _numbers(scores: object, owner: Owner) -> dict[str, float]:
    if not isinstance(scores, Mapping) or not all(isinstance(name, str) for name in scores):
        raise fault(owner, "compute", "scores as a mapping from names to numbers", repr(scores))
    found: dict[str, float] = {}
    for name, value in scores.items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError):
            found[name] = math.nan
        if not math.isfinite(found[name]):
            raise fault(owner, "compute", "finite numbers", f"{value!r} for '{name}'")
    return found


def check_stages(stages: object, owner: Owner) -> tuple[Stage, ...]:
    """Return a schedule's answer if it is a list of stages that can be run."""
    if not isinstance(stages, (list, tuple)) or not all(isinstance(stage, Stage) for stage in stages):
        raise fault(owner, "stages", "a list of Stage", type(stages).__name__)
    if not stages:
        raise fault(owner, "stages", "at least one Stage", "an empty list")
    for index, stage in enumerate(stages):
        whole = isinstance(stage.steps, int) and isinstance(stage.directions, int)
        numbers = isinstance(stage.step_size, (int, float)) and isinstance(stage.entropy, (int, float))
        fine = whole and numbers and stage.steps >= 0 and stage.directions >= 1 and stage.entropy >= 0
        if not (fine and math.isfinite(stage.step_size)):
            expected = "stages with whole numbers steps ≥ 0 and directions ≥ 1, finite step_size, entropy ≥ 0"
            raise fault(owner, "stages", expected, f"stage {index}: {stage}")
    return tuple(stages)


def short(dtype: torch.dtype) -> str:
    """Return a dtype as people write it: float32."""
    return str(dtype).removeprefix("torch.")
