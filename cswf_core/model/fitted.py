"""What a flow has fitted to its data once, and sampling needs in their place: W, and where particles begin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_core.documents import MisfitError, TensorForm, require_forms, structured
from cswf_core.errors import PluginError, RunError
from cswf_core.flow.flow import Flow
from cswf_core.flow.gaussian import Gaussian
from cswf_core.flow.settings import Parts
from cswf_core.interfaces import LinearMap, Space
from cswf_core.model.format import FITTED
from cswf_core.runs.durable import FileEntry, read_tensors, write_tensors

W_PART, GAUSSIAN = "W", "gaussian"
"""The parts of the file; names of tensors begin with them: `W/variances`, `gaussian/mean`."""


@attrs.frozen(eq=False)
class Fitted:
    """The coordinates W of a model's steps, and the Gaussian that its particles begin as."""

    W: LinearMap | None = None
    """None: steps are taken in the data's own coordinates."""
    gaussian: Gaussian | None = None
    """None: particles begin in noise, or where the data's source says."""

    @classmethod
    def read(cls, file: Path, parts: Parts, space: Space, like: Tensor) -> Fitted:
        """Return what a file has, on the device and in the numbers of `like`.

        Raises `RunError` if the file is damaged.
        """
        tensors, facts = read_tensors(file)
        try:
            there = structured(facts, FittedFacts).parts
            W = None
            if W_PART in there:
                if parts.coordinates is None:
                    raise RunError(f"{file} has coordinates, and the model's recipe has none: it is damaged")
                W = parts.coordinates.of_tensors(space, _part(tensors, W_PART), like)
            own = _part(tensors, GAUSSIAN)
            if GAUSSIAN in there:
                require_forms(own, _gaussian_forms(space.dimension), str(file))
                if not own["mean"].shape[1]:
                    raise MisfitError("its Gaussian has no mean")
            gaussian = Gaussian.of_tensors(own, W, like) if GAUSSIAN in there else None
        except MisfitError as error:
            raise RunError(f"{file} is damaged: {error}") from None
        except PluginError as error:
            raise RunError(f"{file} is damaged, or of another version of a plugin: {error}") from None
        if gaussian is not None and gaussian.root is None and (W is None or W.coloured(like) is None):
            raise RunError(f"{file} is damaged: its Gaussian lacks a covariance")
        return cls(W, gaussian)


@attrs.frozen(kw_only=True)
class FittedFacts:
    """The facts of the file."""

    parts: tuple[Literal["W", "gaussian"], ...]


def _gaussian_forms(d: int) -> dict[str, TensorForm]:
    """Return what the tensors of a Gaussian of d dimensions must be."""
    return {
        "mean": TensorForm(torch.is_floating_point, (d, None)),
        "root": TensorForm(torch.is_floating_point, (d, d), optional=True),
        "samples": TensorForm(torch.int64, ()),
    }


def write_fitted(folder: Path, flow: Flow) -> FileEntry | None:
    """Write what a flow has fitted to its data, durably; return its entry in the header, None if there is none.

    Refuses coordinates that cannot be made again of their tensors, before a run has spent its time.
    """
    tensors: dict[str, Tensor] = {}
    there: list[str] = []
    if flow.W is not None:
        assert flow.parts.coordinates is not None
        like = flow.particles.x[:, :0]
        own = flow.parts.coordinates.tensors_of(flow.W, flow.data.space, like)
        tensors |= {f"{W_PART}/{name}": tensor for name, tensor in own.items()}
        there.append(W_PART)
    if flow.gaussian is not None:
        tensors |= {f"{GAUSSIAN}/{name}": tensor for name, tensor in flow.gaussian.tensors().items()}
        there.append(GAUSSIAN)
    if not there:
        return None
    path = folder / FITTED
    write_tensors(path, {name: torch.clone(tensor) for name, tensor in tensors.items()}, {"parts": there})
    return FileEntry.of(path)


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return a part's tensors by their own names."""
    return {
        name.removeprefix(f"{part}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{part}/")
    }
