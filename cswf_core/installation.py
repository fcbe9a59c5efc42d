"""An installation looked over: packages, devices, plugins, their files, and room on the disks.

Nothing but Python is imported with this module: it has to say what is wrong where little else works.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cswf_core.numbers import bytes_in_words
from cswf_core.runs.record import PACKAGES

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from cswf_core.interfaces import NeededFiles
    from cswf_core.plugins import Registry

Status = Literal["ok", "missing", "broken"]

TOO_LITTLE = 10**8
"""Free bytes on a disk below which runs cannot be expected to work."""

COMPILED = ("torch", "torchvision")
"""Packages that are imported to see whether they work: each has to fit this machine, and both each other."""

UNLISTED = ("dev", "docs")
"""Extras that are for work on cswf itself."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    area: str
    """`packages`, `devices`, `plugins`, `files` or `folders`."""
    name: str
    status: Status
    """`missing` is for what not everybody needs; all else that is not as it should be is `broken`."""
    detail: str
    """What there is."""
    advice: str = ""
    """What to do, in one sentence."""


def examine(plugins_dir: Sequence[Path] = ()) -> Iterator[Finding]:
    """Yield everything that decides whether recipes can run here."""
    working = True
    for finding in _packages():
        working = working and finding.status != "broken"
        yield finding
    cache: list[Path] = []
    if working:
        yield from _devices()
        yield from _parts(plugins_dir, cache)
    yield from _folders(cache)


def _packages() -> Iterator[Finding]:
    try:
        facts = metadata.metadata("cswf")
        from packaging.requirements import Requirement
        from packaging.specifiers import SpecifierSet
    except ImportError as error:  # also that of a distribution
        missing = "cswf" if isinstance(error, metadata.PackageNotFoundError) else "packaging"
        yield Finding("packages", missing, "broken", "not installed", "install cswf with pip, as README says")
        return
    needed = SpecifierSet(facts["Requires-Python"] or "")
    fine = needed.contains(platform.python_version(), prereleases=True)
    advice = "" if fine else f"install cswf with Python {needed}"
    yield Finding("packages", "python", "ok" if fine else "broken", platform.python_version(), advice)
    yield Finding("packages", "cswf", "ok", f"{facts['Version']} in {Path(__file__).parent}")
    listed = {"cswf"}
    requirements = [Requirement(text) for text in metadata.requires("cswf") or []]
    for requirement in requirements:
        if _applies(requirement, ""):
            listed.add(requirement.name.lower())
            yield _package(requirement)
    for extra in facts.get_all("Provides-Extra") or []:
        for requirement in requirements:
            if extra not in UNLISTED and _applies(requirement, extra) and not _applies(requirement, ""):
                listed.add(requirement.name.lower())
                yield _optional(requirement.name, f"`pip install 'cswf[{extra}]'` if you need it", requirement)
    for name in PACKAGES:
        if name.lower() not in listed:
            yield _optional(name, "it comes with other packages that can use it")


def _applies(requirement: Requirement, extra: str) -> bool:
    """Say whether a requirement holds on this machine for an extra, '' being none."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _package(requirement: Requirement) -> Finding:
    """Look at a package that cswf needs."""
    name, install = requirement.name, f"`pip install '{requirement.name}{requirement.specifier}'`"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding("packages", name, "broken", "not installed", install)
    if not requirement.specifier.contains(version, prereleases=True):
        detail = f"{version}, and {requirement.specifier} is needed"
        return Finding("packages", name, "broken", detail, install)
    if name in COMPILED:
        try:
            importlib.import_module(name)
        except Exception as error:  # a library that is not there, symbols of another version
            detail = f"{version} cannot be imported: {_one_line(error)}"
            return Finding("packages", name, "broken", detail, "install torch and torchvision anew, together")
    return Finding("packages", name, "ok", f"{version}, {requirement.specifier} is needed")


def _optional(name: str, advice: str, requirement: Requirement | None = None) -> Finding:
    """Look at a package that not everybody needs."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding("packages", name, "missing", "not installed", advice)
    if requirement is not None and not requirement.specifier.contains(version, prereleases=True):
        detail = f"{version}, and {requirement.specifier} is needed"
        return Finding("packages", name, "broken", detail, advice)
    return Finding("packages", name, "ok", version)


def _devices() -> Iterator[Finding]:
    import torch

    from cswf_core.kernels.memory import total_memory

    cores, memory = _cores(), total_memory(torch.device("cpu"))
    yield Finding("devices", "cpu", "ok", f"{cores} cores, {bytes_in_words(memory)} of memory")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        yield _no_cuda()
    for index in range(count):
        yield _cuda(torch.device("cuda", index))


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _no_cuda() -> Finding:
    """Say why no GPU is seen; that there is one that cannot be used is broken, that there is none is not."""
    import torch

    seen = any(Path("/dev").glob("nvidia[0-9]*"))
    if torch.version.cuda is None:
        detail = f"PyTorch {torch.__version__} is built without CUDA"
        advice = "install a build with CUDA to use the GPU" if seen else "flows run on the CPU"
        return Finding("devices", "cuda", "missing", detail, advice)
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        detail = "CUDA_VISIBLE_DEVICES hides all GPUs"
        return Finding("devices", "cuda", "missing", detail, "unset it to use them")
    if not seen:
        detail = "there is no NVIDIA GPU, or its driver is not loaded"
        return Finding("devices", "cuda", "missing", detail, "flows run on the CPU")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        reason = "PyTorch counts none"
    except Exception as error:
        reason = _one_line(error)
    detail = f"there is an NVIDIA GPU, and PyTorch (CUDA {torch.version.cuda}) cannot use it: {reason}"
    return Finding("devices", "cuda", "broken", detail, "update the driver, or install a PyTorch that fits it")


def _cuda(device: Any) -> Finding:
    """Look at one GPU, and compute something on it."""
    import torch

    from cswf_core.kernels.gpu import OLDEST_CAPABILITY, usable
    from cswf_core.kernels.memory import total_memory

    name = str(device)
    try:
        torch.ones(2, device=device).sum().item()
        major, minor = torch.cuda.get_device_capability(device)
        detail = f"{torch.cuda.get_device_name(device)}, {bytes_in_words(total_memory(device))} of memory"
    except Exception as error:  # no code for this card, a card that has failed
        detail = f"it cannot compute: {_one_line(error)}"
        return Finding("devices", name, "broken", detail, "install a PyTorch that is built for this GPU")
    if usable(device):
        return Finding("devices", name, "ok", f"{detail}, with Triton's kernels")
    oldest = ".".join(map(str, OLDEST_CAPABILITY))
    old = f"they need compute capability {oldest}, and this GPU has {major}.{minor}"
    advice = (
        "install triton for steps that are several times as fast"
        if (major, minor) >= OLDEST_CAPABILITY
        else old
    )
    return Finding("devices", name, "missing", f"{detail}, without Triton's kernels", advice)


def _parts(plugins_dir: Sequence[Path], cache: list[Path]) -> Iterator[Finding]:
    """Look at recipes and plugins; the folders where plugins have their files are added to `cache`."""
    from cswf_core.plugins import Registry
    from cswf_core.recipe import builtin_recipes

    count = len(builtin_recipes())
    advice = "" if count else "install cswf anew: they are part of it"
    yield Finding("plugins", "recipes", "ok" if count else "broken", f"{count} built-in recipes", advice)
    registry = Registry.discover(plugins_dir)
    faulty = {broken.owner.distribution for broken in registry.broken}
    for distribution, version in registry.distributions.items():
        offered = sum(plugin.owner.distribution == distribution for plugin in registry.plugins)
        if offered or distribution not in faulty:
            detail = f"{offered} plugin{'' if offered == 1 else 's'}" if offered else "watches runs"
            yield Finding("plugins", f"{distribution} {version}".strip(), "ok", detail)
    for broken in registry.broken:
        name = f"{broken.owner.distribution} {broken.owner.version}".strip()
        advice = "mend or uninstall it; only recipes that name it fail"
        kind = f"{broken.owner.kind} " if broken.owner.kind else ""
        yield Finding("plugins", name, "broken", f"{kind}{broken.owner.name}: {broken.reason}", advice)
    yield from _files(registry, cache)


def _files(registry: Registry, cache: list[Path]) -> Iterator[Finding]:
    """Look at the files that data sources and metrics need, each once."""
    users: dict[NeededFiles, list[str]] = {}
    for kind in ("dataset", "metric"):
        for name in registry.names(kind):
            try:
                needed = _needed_files(registry, kind, name)
            except Exception as error:
                yield Finding("files", f"{kind} {name}", "broken", _one_line(error), "mend or uninstall it")
                continue
            if needed is not None:
                users.setdefault(needed, []).append(name)
                cache.append(needed.folder)
    for needed, names in users.items():
        purpose = "" if names == [needed.name] else f", for {', '.join(names)}"
        if needed.fault:
            yield Finding("files", needed.name, "broken", f"{needed.fault}{purpose}", needed.advice)
        elif needed.path is None:
            detail = f"not in {needed.folder}{purpose}"
            yield Finding("files", needed.name, "missing", detail, needed.advice)
        else:
            checked = ", with the right checksum" if needed.verified else ""
            yield Finding("files", needed.name, "ok", f"{needed.path}{checked}{purpose}")


def _needed_files(registry: Registry, kind: str, name: str) -> NeededFiles | None:
    """Return what a plugin with default parameters needs; nothing if some parameter has no default."""
    import attrs

    from cswf_core.checks import calling
    from cswf_core.errors import PluginError
    from cswf_core.interfaces import NeededFiles

    plugin = registry.find(kind, name)
    if any(field.default is attrs.NOTHING and field.init for field in attrs.fields(plugin.factory)):
        return None
    with calling(plugin.owner, "needed_files"):
        needed = plugin.factory().needed_files()
    if needed is not None and not isinstance(needed, NeededFiles):
        got = type(needed).__name__
        raise PluginError(f"{plugin.owner}: needed_files must return NeededFiles or None, got {got}")
    return needed


def _folders(cache: list[Path]) -> Iterator[Finding]:
    runs = Path("runs")
    fault = _unwritable(runs)
    advice = "change to another folder, or name one with --out" if fault else ""
    detail = fault or f"{runs.absolute()} can be written"
    yield Finding("folders", "runs", "broken" if fault else "ok", detail, advice)
    yield _room("this folder", Path.cwd())
    outermost = [folder for folder in dict.fromkeys(cache) if not set(folder.parents) & set(cache)]
    for folder in outermost:
        fault = _unwritable(folder)
        if fault:
            advice = "files that are there can be read; for others set CSWF_DATA to a folder of yours"
            yield Finding("folders", "data and cache", "missing", fault, advice)
        yield _room("data and cache", folder)


def _unwritable(folder: Path) -> str:
    """Return why no file can be made in a folder, which need not be there yet; '' if one can be made."""
    if folder.exists() and not folder.is_dir():
        return f"{folder.absolute()} is a file, not a folder"
    place = _there(folder)
    try:
        with tempfile.TemporaryFile(dir=place):
            return ""
    except OSError as error:
        return f"{place} cannot be written ({error.strerror or error})"


def _room(name: str, folder: Path) -> Finding:
    """Look at the free space of a folder's disk."""
    free = shutil.disk_usage(_there(folder)).free
    enough = free >= TOO_LITTLE
    advice = "" if enough else "make room: samples and checkpoints of one run can take gigabytes"
    return Finding(
        "folders", name, "ok" if enough else "broken", f"{bytes_in_words(free)} free in {folder}", advice
    )


def _there(folder: Path) -> Path:
    """Return a folder, or the nearest above it that exists."""
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())


def _one_line(error: BaseException) -> str:
    """Return an error's text in one line, not too long; its name if it has none."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"
