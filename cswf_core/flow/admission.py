"""Data, conditions and observations are checked here, where they enter the engine."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.flow.boundary import calling, check_finite, check_tensor, fault, short
from cswf_core.interfaces import Conditions, Dataset, Observation, Owner, Stratum

FEW = 64
"""Samples that are enough to check an observation on."""


def check_dataset(data: object, owner: Owner) -> Dataset:
    """Return a data source's answer if it is a non-empty, finite set with fitting labels."""
    if not isinstance(data, Dataset):
        raise fault(owner, "load", "a Dataset", type(data).__name__)
    d, x = data.space.dimension, data.x
    if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[0] != d or not x.is_floating_point():
        got = f"{'×'.join(map(str, x.shape))} of {short(x.dtype)}" if isinstance(x, Tensor) else repr(type(x))
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
        got = f"{'×'.join(map(str, x.shape))} of {short(x.dtype)}"
        raise fault(owner, "start", f"x with d = {d} rows of finite floating-point numbers", got)
    check_conditions(start.conditions, owner, "start", len(start), len(data.classes))
    return start


def check_amplifier(amplifier: object, owner: Owner) -> None:
    """Refuse a condition whose ξ is no number."""
    if not isinstance(amplifier, (int, float)) or not math.isfinite(amplifier):
        raise fault(owner, "amplifier", "a finite number ξ", repr(amplifier))


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
        got = f"{tuple(value.shape)} of {short(value.dtype)}" if isinstance(value, Tensor) else repr(value)
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
            got = f"{'×'.join(map(str, labels.shape))} of {short(labels.dtype)}"
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
