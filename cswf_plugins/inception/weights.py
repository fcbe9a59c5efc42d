"""The feature network's file: the places it may be in, its checksum, and its download."""

from __future__ import annotations

import hashlib
import importlib
import io
import logging
import shutil
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import attrs
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import NeededFiles, Workbench
from cswf_core.runs.durable import fingerprint, make_folder, replacing
from cswf_plugins.datasets.images import data_root

FOLDER = "inception"
SILENCE_S = 30.0
"""Seconds without a byte after which a download has failed."""

log = logging.getLogger("cswf")


@attrs.frozen
class Published:
    """A file whose bytes are known."""

    name: str
    sha256: str


WHOLE = Published("inception-2015-12-05.pt", "f58cb9b6ec323ed63459aa4fb441fe750cfe39fafad6da5cb504a16f19e958f4")
"""clean-fid's own file, TorchScript, with the classifier."""
FEATURES = Published(
    "inception-2015-12-05-features.pt", "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
)
"""The same weights up to the 2,048 features, TorchScript."""


@attrs.frozen
class Weights:
    """A file that has been checked."""

    path: Path
    kind: Published

    def read(self) -> bytes:
        """Return the file's bytes, checked once more: it is a program, and others may write where it lies."""
        content = self.path.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.kind.sha256:
            raise DataError(f"{self.path} has changed: it is not {self.kind.name} any more")
        return content

    def program(self, device: torch.device | str) -> Any:
        """Return the program in the file; it is loaded from bytes that were checked, and not by its path."""
        jit: Any = torch.jit  # PyTorch does not say the types of these
        try:
            return jit.load(io.BytesIO(self.read()), map_location=device)
        except (OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{self.path} cannot be loaded ({reason})") from None


def find(bench: Workbench, *, classifier: bool = False) -> Weights:
    """Return the network's file: the one named, else one that is there, else a downloaded one.

    With `classifier` it is the file that has one: that without is passed over, and refused if it is named.
    """
    return bench.keep(("inception weights", classifier), lambda: _find(bench, classifier))


def _find(bench: Workbench, classifier: bool) -> Weights:
    if bench.weights is not None:
        return _named(bench.weights.expanduser(), classifier)
    for path in _places(classifier):
        kind = _kind(path)
        if kind is not None:
            return Weights(path, kind)
        log.warning("%s is not the file of that name (its SHA-256 differs) and is passed over", path)
    if not bench.download:
        raise _missing("and evaluate.download is false", classifier)
    return Weights(_fetched(data_root() / FOLDER, classifier), WHOLE)


def needed_files(*, classifier: bool = False) -> NeededFiles:
    """Return the network's file, the first whose checksum is right, or what is wrong with those there are."""
    folder, name = data_root() / FOLDER, "network with classifier" if classifier else "feature network"
    faults = []
    for path in _places(classifier):
        try:
            if _kind(path) is not None:
                return NeededFiles(name=name, folder=folder, path=path, verified=True)
            faults.append(f"{path} is not the file of that name, as its SHA-256 differs")
        except DataError as error:
            faults.append(str(error))
    purpose = " that needs it" if classifier else ""
    first = f"remove it, and the next evaluation{purpose}" if faults else f"the first evaluation{purpose}"
    files = "it" if classifier else f"that or {FEATURES.name}"
    advice = f"{first} downloads {WHOLE.name} (96 MB), or put {files} into {folder}"
    return NeededFiles(name=name, folder=folder, fault="; ".join(faults), advice=advice)


def _places(classifier: bool) -> list[Path]:
    """Return the files that may be the network's, in the order in which they are tried."""
    folder = data_root() / FOLDER
    # The second is where clean-fid itself puts its download.
    whole = [folder / WHOLE.name, Path(tempfile.gettempdir(), WHOLE.name)]
    places = whole if classifier else [*whole, folder / FEATURES.name]
    return [path for path in places if path.is_file()]


def _named(path: Path, classifier: bool) -> Weights:
    if not path.is_file():
        raise DataError(f"evaluate.weights: {path} is not a file")
    kind = _kind(path)
    if classifier and kind == FEATURES:
        raise DataError(f"evaluate.weights: {path} has no classifier; {WHOLE.name} has one")
    if kind is None:
        raise DataError(
            f"evaluate.weights: {path} is neither {WHOLE.name} nor {FEATURES.name}: its SHA-256 is another"
        )
    return Weights(path, kind)


def _kind(path: Path) -> Published | None:
    """Return which of the published files this is."""
    try:
        sha256 = fingerprint(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from None
    return next((kind for kind in (WHOLE, FEATURES) if kind.sha256 == sha256), None)


def _fetched(folder: Path, classifier: bool) -> Path:
    """Download clean-fid's file from where clean-fid has it, and say so."""
    target = folder / WHOLE.name
    # Not a warning: --quiet would hide that, and nothing is downloaded without saying so.
    log.error("downloading the feature network, %s (96 MB), to %s", WHOLE.name, folder)
    try:
        address = importlib.import_module("cleanfid.downloads_helper").inception_url
        make_folder(folder)
        with urllib.request.urlopen(address, timeout=SILENCE_S) as answer, replacing(target) as temporary:
            with temporary.open("wb") as file:
                shutil.copyfileobj(answer, file)
            if fingerprint(temporary) != WHOLE.sha256:
                raise DataError("what arrived is not the published file")
    except Exception as error:  # urllib, ssl and sockets each raise their own
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise _missing(f"and could not be downloaded ({reason})", classifier) from None
    return target


def _missing(reason: str, classifier: bool) -> DataError:
    folder = data_root() / FOLDER
    network = "the feature network with its classifier" if classifier else "the feature network"
    files = WHOLE.name if classifier else f"{WHOLE.name} or {FEATURES.name}"
    without = ""
    if classifier and (folder / FEATURES.name).is_file():
        without = f" ({FEATURES.name}, which is there, has none)"
    return DataError(
        f"{network} is not in {folder} {reason}; put {files} there{without}, "
        f"or name the file with evaluate.weights (--weights)"
    )
