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
from cswf_core.runs.durable import FileEntry, read_tensors, write_tensors

FITTED = "fitted.safetensors"
"""Name of the file, which only models with something fitted have."""

W_PART = "W"
"""Part of the file with the coordinates; names of its tensors begin with it: `W/variances`."""

GAUSSIAN_PART = "gaussian"
"""Part of the file with the Gaussian: `gaussian/mean`."""


@attrs.frozen(kw_only=True)
class FittedFacts:
    """The facts of the file."""

    parts: tuple[Literal["W", "gaussian"], ...]


@attrs.frozen(eq=False)
class Fitted:
    """The coordinates W of a model's steps, and the Gaussian that its particles begin as."""

    W: LinearMap | None = None
    """Coordinates of the steps; None: steps are taken in the data's own coordinates."""
    gaussian: Gaussian | None = None
    """Distribution of the first particles; None: they begin in noise, or where the data's source says."""

    @classmethod
    def read(cls, file: Path, parts: Parts, space: Space, like: Tensor) -> Fitted:
        """Return what a file has; raise `RunError` if it is damaged.

        Args:
            file: A file that `write_fitted` has written.
            parts: The recipe's plugins, of which the coordinates make W.
            space: The space of the data, of dimension d.
            like: Has the device and the numbers that are wanted.
        """
        tensors, facts = read_tensors(file)
        W = None
        gaussian = None
        try:
            there = structured(facts, FittedFacts).parts
            if W_PART in there:
                if parts.coordinates is None:
                    raise RunError(f"{file} has coordinates, and the model's recipe has none: it is damaged")
                W = parts.coordinates.of_tensors(space, _part(tensors, W_PART), like)
            if GAUSSIAN_PART in there:
                own = _part(tensors, GAUSSIAN_PART)
                require_forms(own, _gaussian_forms(space.dimension), str(file))
                if not own["mean"].shape[1]:
                    raise MisfitError("its Gaussian has no mean")
                gaussian = Gaussian.of_tensors(own, W, like)
        except MisfitError as error:
            raise RunError(f"{file} is damaged: {error}") from None
        except PluginError as error:
            raise RunError(f"{file} is damaged, or of another version of a plugin: {error}") from None
        if gaussian is not None and gaussian.root is None and (W is None or W.coloured(like) is None):
            raise RunError(f"{file} is damaged: its Gaussian lacks a covariance")
        return cls(W, gaussian)


def write_fitted(folder: Path, flow: Flow) -> FileEntry | None:
    """Write what a flow has fitted to its data, durably; return its entry in the header, None if there is none.

    Refuses coordinates that cannot be made again of their tensors, before a run has spent its time.
    """
    parts: dict[str, Mapping[str, Tensor]] = {}
    if flow.setup.W is not None:
        assert flow.parts.coordinates is not None
        parts[W_PART] = flow.parts.coordinates.tensors_of(flow.setup.W, flow.data.space, flow.setup.like)
    if flow.setup.gaussian is not None:
        parts[GAUSSIAN_PART] = flow.setup.gaussian.tensors()
    if not parts:
        return None
    path = folder / FITTED
    tensors = {f"{part}/{name}": own[name].clone() for part, own in parts.items() for name in own}
    write_tensors(path, tensors, {"parts": [*parts]})
    return FileEntry.of(path)


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return a part's tensors by their own names."""
    prefix = f"{part}/"
    return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}


def _gaussian_forms(d: int) -> dict[str, TensorForm]:
    """Return what the tensors of a Gaussian of d dimensions must be."""
    return {
        "mean": TensorForm(torch.is_floating_point, (d, None)),
        "root": TensorForm(torch.is_floating_point, (d, d), optional=True),
        "samples": TensorForm(torch.int64, ()),
    }
