"""The feature network's file: the places it may be in, its checksum, and its download."""

from __future__ import annotations

import hashlib
import importlib
import logging
import shutil
import tempfile
import urllib.request
from pathlib import Path

import attrs

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


def find(bench: Workbench) -> Weights:
    """Return the network's file: the one named, else one that is there, else a downloaded one."""
    return bench.keep("inception weights", lambda: _find(bench))


def _find(bench: Workbench) -> Weights:
    if bench.weights is not None:
        return _named(bench.weights.expanduser())
    for path in _places():
        kind = _kind(path)
        if kind is not None:
            return Weights(path, kind)
        log.warning("%s is not the file of that name (its SHA-256 differs) and is passed over", path)
    if not bench.download:
        raise _missing("and evaluate.download is false")
    return Weights(_fetched(data_root() / FOLDER), WHOLE)


def needed_files() -> NeededFiles:
    """Return the network's file, the first whose checksum is right, or what is wrong with those there are."""
    folder, name = data_root() / FOLDER, "feature network"
    faults = []
    for path in _places():
        try:
            if _kind(path) is not None:
                return NeededFiles(name=name, folder=folder, path=path, verified=True)
            faults.append(f"{path} is not the file of that name, as its SHA-256 differs")
        except DataError as error:
            faults.append(str(error))
    first = "remove it, and the next evaluation" if faults else "the first evaluation"
    advice = f"{first} downloads {WHOLE.name} (96 MB), or put that or {FEATURES.name} into {folder}"
    return NeededFiles(name=name, folder=folder, fault="; ".join(faults), advice=advice)


def _places() -> list[Path]:
    """Return the files that may be the network's, in the order in which they are tried."""
    folder = data_root() / FOLDER
    # The second is where clean-fid itself puts its download.
    places = (folder / WHOLE.name, Path(tempfile.gettempdir(), WHOLE.name), folder / FEATURES.name)
    return [path for path in places if path.is_file()]


def _named(path: Path) -> Weights:
    if not path.is_file():
        raise DataError(f"evaluate.weights: {path} is not a file")
    kind = _kind(path)
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


def _fetched(folder: Path) -> Path:
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
        raise _missing(f"and could not be downloaded ({reason})") from None
    return target


def _missing(reason: str) -> DataError:
    folder = data_root() / FOLDER
    return DataError(
        f"the feature network is not in {folder} {reason}; put {WHOLE.name} or {FEATURES.name} there, "
        f"or name the file with evaluate.weights (--weights)"
    )
