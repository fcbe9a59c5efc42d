"""The feature network's file: the places it may be in, its checksum, and its download."""

from __future__ import annotations

import hashlib
import importlib
import io
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

import attrs
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import NeededFiles, Workbench
from cswf_core.runs.durable import fingerprint, make_folder, replacing
from cswf_plugins.datasets.images import data_root

WHOLE = "inception-2015-12-05.pt"
"""clean-fid's own file, TorchScript, with the classifier."""
FEATURES = "inception-2015-12-05-features.pt"
"""The same weights up to the 2,048 features, TorchScript."""
PUBLISHED = {
    WHOLE: "f58cb9b6ec323ed63459aa4fb441fe750cfe39fafad6da5cb504a16f19e958f4",
    FEATURES: "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34",
}
"""The SHA-256 of both files."""

log = logging.getLogger("cswf")


@attrs.frozen
class Weights:
    """A file that has been checked."""

    path: Path
    name: str
    """Which of the published files it is."""

    @property
    def sha256(self) -> str:
        """Its published checksum."""
        return PUBLISHED[self.name]

    def program(self, device: torch.device | str) -> Any:
        """Return the program in the file, from bytes checked once more, as others may write where it lies."""
        jit: Any = torch.jit  # PyTorch does not say the types of these
        content = self.path.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise DataError(f"{self.path} has changed: it is not {self.name} any more")
        try:
            return jit.load(io.BytesIO(content), map_location=device)
        except (OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{self.path} cannot be loaded ({reason})") from None


def find(bench: Workbench) -> Weights:
    """Return the network's file: the one named, else one that is there, else a downloaded one."""
    return bench.keep("inception weights", lambda: _find(bench))


def _find(bench: Workbench) -> Weights:
    if bench.weights is not None:
        return _named(bench.weights.expanduser())
    for path in _places():
        weights = _checked(path)
        if weights is not None:
            return weights
        log.warning("%s is not the file of that name (its SHA-256 differs) and is passed over", path)
    if not bench.download:
        raise _missing("and evaluate.download is false")
    return _fetched()


def needed_files() -> NeededFiles:
    """Return the network's file, the first whose checksum is right, or what is wrong with those there are."""
    name = "feature network"
    faults = []
    for path in _places():
        try:
            if _checked(path) is not None:
                return NeededFiles(name=name, folder=_folder(), path=path, verified=True)
            faults.append(f"{path} is not the file of that name, as its SHA-256 differs")
        except DataError as error:
            faults.append(str(error))
    first = "remove it, and the next evaluation" if faults else "the first evaluation"
    advice = f"{first} downloads {WHOLE} (96 MB), or put that or {FEATURES} into {_folder()}"
    return NeededFiles(name=name, folder=_folder(), fault="; ".join(faults), advice=advice)


def _folder() -> Path:
    return data_root() / "inception"


def _places() -> list[Path]:
    """Return the files that may be the network's, in the order in which they are tried."""
    # The second is where clean-fid itself puts its download.
    places = (_folder() / WHOLE, Path(tempfile.gettempdir(), WHOLE), _folder() / FEATURES)
    return [path for path in places if path.is_file()]


def _named(path: Path) -> Weights:
    if not path.is_file():
        raise DataError(f"evaluate.weights: {path} is not a file")
    weights = _checked(path)
    if weights is None:
        raise DataError(f"evaluate.weights: {path} is neither {WHOLE} nor {FEATURES}: its SHA-256 is another")
    return weights


def _checked(path: Path) -> Weights | None:
    """Return a file as that of the published ones whose bytes it has."""
    try:
        sha256 = fingerprint(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from None
    return next((Weights(path, name) for name, each in PUBLISHED.items() if each == sha256), None)


def _fetched() -> Weights:
    """Download clean-fid's file from where clean-fid has it, and say so."""
    import urllib.request  # with it come http and ssl, for which every start would wait

    folder = _folder()
    target = folder / WHOLE
    # Not a warning: --quiet would hide that, and nothing is downloaded without saying so.
    log.error("downloading the feature network, %s (96 MB), to %s", WHOLE, folder)
    try:
        address = importlib.import_module("cleanfid.downloads_helper").inception_url
        make_folder(folder)
        with urllib.request.urlopen(address, timeout=30.0) as answer, replacing(target) as temporary:
            with temporary.open("wb") as file:
                shutil.copyfileobj(answer, file)
            if fingerprint(temporary) != PUBLISHED[WHOLE]:
                raise DataError("what arrived is not the published file")
    except Exception as error:  # urllib, ssl and sockets each raise their own
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise _missing(f"and could not be downloaded ({reason})") from None
    return Weights(target, WHOLE)


def _missing(reason: str) -> DataError:
    return DataError(
        f"the feature network is not in {_folder()} {reason}; put {WHOLE} or {FEATURES} there, "
        "or name the file with evaluate.weights (--weights)"
    )
