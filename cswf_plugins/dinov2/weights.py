"""DINOv2's file: where it is looked for, and the tensors in it, of which nothing is executed."""

from __future__ import annotations

from pathlib import Path

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import NeededFiles, Workbench
from cswf_core.runs.durable import fingerprint
from cswf_plugins.datasets.images import data_root

FOLDER = "dinov2"
NAME = "dinov2_vitl14_pretrain.pth"
"""ViT-L/14, 1.2 GB, as its authors have published it."""
ADDRESS = f"dl.fbaipublicfiles.com/dinov2/dinov2_vitl14/{NAME}"


@attrs.frozen
class DinoWeights:
    """A file of weights."""

    path: Path
    sha256: str

    def read(self) -> dict[str, Tensor]:
        """Return its tensors by name, on the CPU; raise where it has anything else."""
        try:
            tensors = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as error:  # pickles of strangers raise whatever they like
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{self.path} is not a file of weights ({reason})") from None
        if not isinstance(tensors, dict) or not all(isinstance(x, Tensor) for x in tensors.values()):
            raise DataError(f"{self.path} has something else than tensors by name")
        return {str(name): tensor.float() for name, tensor in tensors.items()}


def find(bench: Workbench, named: Path | None) -> DinoWeights:
    """Return the file that is named, else that under the data's root; raise `DataError` where there is none."""
    return bench.keep(("dinov2 weights", named), lambda: _find(named))


def needed_files() -> NeededFiles:
    """Return the file under the data's root; it is only seen, as its bytes have no published checksum."""
    path = _place()
    advice = f"download {ADDRESS} (1.2 GB) into {path.parent}, if you want this metric"
    return NeededFiles(name="DINOv2", folder=path.parent, path=path if path.is_file() else None, advice=advice)


def _find(named: Path | None) -> DinoWeights:
    path = _place() if named is None else named.expanduser()
    if not path.is_file():
        raise DataError(
            f"DINOv2's weights: {path} is not a file; download {ADDRESS} to that place, "
            "or name the file with the metric's parameter weights"
        )
    try:
        return DinoWeights(path, fingerprint(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from None


def _place() -> Path:
    return data_root() / FOLDER / NAME
