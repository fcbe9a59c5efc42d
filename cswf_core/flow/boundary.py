"""What a plugin returns is checked here, where it enters the engine.

Every complaint names the plugin, its distribution and version, what the contract expects and what came.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pluggy
import torch
from torch import Tensor

from cswf_core.errors import CswfError, DataError, PluginError
from cswf_core.flow.memory import is_out_of_memory
from cswf_core.interfaces import (
    Conditions,
    Dataset,
    DenseProjection,
    Observation,
    Owner,
    Projection,
    ProjectionSampler,
    Stage,
    Stratum,
)

FEW = 64
"""Samples that are enough to check an observation on."""

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
    expected = f"a {'×'.join(map(str, shape))} tensor of {_short(dtype)} on {like.device}"
    if not isinstance(value, Tensor):
        raise fault(owner, method, expected, f"{type(value).__name__}")
    if tuple(value.shape) != shape or value.dtype != dtype or value.device != like.device:
        got = f"{'×'.join(map(str, value.shape)) or 'scalar'} of {_short(value.dtype)} on {value.device}"
        raise fault(owner, method, expected, got)
    return value


def check_finite(value: Tensor, owner: Owner, method: str) -> Tensor:
    """Return `value` if it has no NaN and no infinity. Reads one number back from the device."""
    if not bool(torch.isfinite(value).all()):
        bad = int((~torch.isfinite(value)).sum())
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


def check_dataset(data: object, owner: Owner) -> Dataset:
    """Return a data source's answer if it is a non-empty, finite set with fitting labels."""
    if not isinstance(data, Dataset):
        raise fault(owner, "load", "a Dataset", type(data).__name__)
    d, x = data.space.dimension, data.x
    if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[0] != d or not x.is_floating_point():
        got = f"{'×'.join(map(str, x.shape))} of {_short(x.dtype)}" if isinstance(x, Tensor) else repr(type(x))
        raise fault(owner, "load", f"x with d = {d} rows of floating-point numbers", got)
    if len(data) == 0:
        raise DataError(f"{owner}: the data set is empty")
    if not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).any(dim=0).sum())
        raise DataError(f"{owner}: {bad:,} of {len(data):,} samples have NaN or infinite values")
    check_conditions(data.conditions, owner, "load", len(data), len(data.classes))
    if data.held_out is not None:
        held_out = check_dataset(data.held_out, owner)
        if (held_out.space, held_out.classes) != (data.space, data.classes) or held_out.held_out is not None:
            expected = f"held-out samples of the same kind, {data.space} with {len(data.classes)} classes"
            raise fault(owner, "load", expected, f"{held_out.space} with {len(held_out.classes)}")
    return data


def check_start(start: object, data: Dataset, owner: Owner) -> Dataset | None:
    """Return the samples that particles begin with, if they are samples of the data's own space."""
    if start is None:
        return None
    if not isinstance(start, Dataset):
        raise fault(owner, "start", "None or a Dataset", type(start).__name__)
    d, x = data.space.dimension, start.x
    if x.ndim != 2 or x.shape[0] != d or not x.is_floating_point() or not bool(torch.isfinite(x).all()):
        got = f"{'×'.join(map(str, x.shape))} of {_short(x.dtype)}"
        raise fault(owner, "start", f"x with d = {d} rows of finite floating-point numbers", got)
    check_conditions(start.conditions, owner, "start", len(start), len(data.classes))
    return start


def check_amplifier(amplifier: object, owner: Owner) -> None:
    """Refuse a condition whose ξ is no number."""
    if not isinstance(amplifier, (int, float)) or not math.isfinite(amplifier):
        raise fault(owner, "amplifier", "a finite number ξ", repr(amplifier))


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


def check_origin(conditions: Conditions, data: Dataset, owner: Owner) -> None:
    """Refuse an observation without samples that are seen."""
    origin, held_out = conditions.origin, 0 if data.held_out is None else len(data.held_out)
    if origin is None:
        raise fault(owner, "draw", "the origin of every particle's observation", "none")
    lowest, highest = int(origin.min()), int(origin.max())
    if lowest < -held_out or highest >= len(data):
        expected = f"origins from {-held_out} to {len(data) - 1}"
        raise fault(owner, "draw", expected, f"{lowest} … {highest}")


def check_balance(value: object, owner: Owner, N: int) -> Tensor | None:
    """Return which data to flow to."""
    if value is None:
        return None
    if not isinstance(value, Tensor) or value.dtype != torch.int64 or value.ndim != 1 or len(value) == 0:
        got = f"{tuple(value.shape)} of {_short(value.dtype)}" if isinstance(value, Tensor) else repr(value)
        raise fault(owner, "balance", "None or indices of data (int64)", got)
    if int(value.min()) < 0 or int(value.max()) >= N:
        raise fault(owner, "balance", f"indices from 0 to {N - 1}", f"{int(value.min())} … {int(value.max())}")
    return value


def check_conditions(value: object, owner: Owner, method: str, count: int, classes: int) -> Conditions:
    """Return conditions if there is one per sample and every label names a class."""
    if not isinstance(value, Conditions):
        raise fault(owner, method, "Conditions", type(value).__name__)
    labels, vectors = value.labels, value.vectors
    if labels is not None:
        if labels.dtype != torch.int64 or tuple(labels.shape) != (count,):
            got = f"{'×'.join(map(str, labels.shape))} of {_short(labels.dtype)}"
            raise fault(owner, method, f"{count} labels of int64", got)
        if count and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
            got = f"{int(labels.min())} … {int(labels.max())}"
            raise fault(owner, method, f"labels from 0 to {classes - 1}, one per class", got)
    if vectors is not None:
        if vectors.ndim != 2 or vectors.shape[1] != count:
            got = "×".join(map(str, vectors.shape))
            raise fault(owner, method, f"condition vectors of shape l×{count}", got)
        check_finite(vectors, owner, method)
    return value


def check_strata(strata: object, owner: Owner, M: int, N: int) -> list[Stratum] | None:
    """Return strata if every particle is in exactly one and each has data to flow to."""
    if strata is None:
        return None
    if not isinstance(strata, list) or not strata:
        raise fault(owner, "strata", "None or a list of pairs", repr(type(strata)))
    covered = torch.cat([particles for particles, _ in strata])
    if not torch.equal(covered.sort().values.cpu(), torch.arange(M)):
        raise fault(owner, "strata", f"each of {M} particles exactly once", f"{len(covered)} indices")
    for particles, data in strata:
        if len(data) == 0 or int(data.max()) >= N:
            raise DataError(f"{owner}: {len(particles)} particles ask for a condition that no data have")
    return strata


def check_observation(value: object, owner: Owner, x: Tensor, amplifier: float) -> Observation | None:
    """Return an observation of the particles x (d×M) if it is an orthogonal projection, as far as x tells."""
    if value is None:
        return None
    method = "observation"
    if not isinstance(value, Observation):
        raise fault(owner, method, "None or an Observation", type(value).__name__)
    if amplifier != 1 and not value.shared:
        raise DataError(f"{owner}: an amplifier other than 1 needs one observation for all particles")
    if value.shared:
        x = x[:, :FEW].contiguous()  # a check must not need the memory of the flow several times over
    with calling(owner, method):
        seen, free, shown = value.seen(x), value.free(x), value.shown(x)
        again = value.seen(seen)
    for part in (seen, free, shown, again):
        check_tensor(part, owner, method, shape=tuple(x.shape), like=x)
    x, seen, free, again = (part[:, :FEW] for part in (x, seen, free, again))
    if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in ((again, seen), (seen + free, x))):
        raise fault(owner, method, "an orthogonal projection", "one that changes what it has projected")
    across = (seen * free).sum(dim=0).abs() > 1e-3 * (x * x).sum(dim=0)
    if bool(across.any()):
        raise fault(owner, method, "an orthogonal projection", "one whose two parts are not at right angles")
    return value


def check_scores(scores: object, owner: Owner) -> dict[str, float]:
    """Return a metric's answer if it is finite numbers by name."""
    if not isinstance(scores, Mapping) or not all(isinstance(name, str) for name in scores):
        raise fault(owner, "compute", "a mapping from names to numbers", repr(scores))
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


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
