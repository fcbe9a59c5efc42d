"""An installation looked over: packages, devices, plugins, their files, and room on the disks.

Nothing but Python is imported with this module: it has to say what is wrong where little else works.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cswf_core.numbers import bytes_in_words
from cswf_core.runs import PACKAGES

if TYPE_CHECKING:
    from cswf_core.interfaces import NeededFiles
    from cswf_core.plugins import Registry

TOO_LITTLE = 10**8
"""Free bytes on a disk below which runs cannot be expected to work."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    area: str
    """`packages`, `devices`, `plugins`, `files` or `folders`."""
    name: str
    status: Literal["ok", "missing", "broken"]
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
    except metadata.PackageNotFoundError:
        yield Finding("packages", "cswf", "broken", "not installed", "install cswf with pip, as README says")
        return
    python = platform.python_version()
    needed = facts["Requires-Python"] or ""
    fine = _satisfies(python, needed)
    advice = "" if fine else f"install cswf with Python {needed}"
    yield Finding("packages", "python", "ok" if fine else "broken", python, advice)
    yield Finding("packages", "cswf", "ok", f"{facts['Version']} in {Path(__file__).parent}")
    listed = {"cswf"}
    requirements = [_requirement(text) for text in metadata.requires("cswf") or []]
    for name, bound, extra in sorted(requirements, key=lambda requirement: requirement[2] != ""):
        if name.lower() in listed or extra == "dev":  # for work on cswf itself
            continue
        listed.add(name.lower())
        advice = f"`pip install 'cswf[{extra}]'` if you need it" if extra else f"`pip install '{name}{bound}'`"
        yield _package(name, bound, advice, needed=not extra)
    for name in PACKAGES:
        if name.lower() not in listed:
            yield _package(name, "", "it comes with other packages that can use it", needed=False)


def _requirement(text: str) -> tuple[str, str, str]:
    """Return (name, bound, extra) of a requirement of cswf's own: `tensorboard>=2.14; extra == 'tensorboard'`.

    tests/project/test_dependencies.py sees to it that pyproject.toml has no others.
    """
    parsed = re.fullmatch(r"([\w.-]+)((?:>=[\w.]+)?)(?:.*extra == ['\"](\w+)['\"])?.*", text)
    assert parsed is not None, text
    return parsed[1], parsed[2], parsed[3] or ""


def _satisfies(version: str, bound: str) -> bool:
    """Say whether a version is as new as a bound, `>=1.5`, or newer; `1.5rc1` is older than 1.5."""
    return not bound or _ordered(version) >= _ordered(bound.removeprefix(">="))


def _ordered(version: str) -> tuple[list[int], bool]:
    """Return what versions are ordered by: their numbers, and whether they are more than a preview of these."""
    public = version.partition("+")[0]
    release = re.split(r"[^\d.]", public)[0]
    numbers = [int(number) for number in release.split(".") if number]
    while numbers and not numbers[-1]:  # 1.5.0 is 1.5
        numbers.pop()
    return numbers, not re.search("[abc]|dev", public[len(release) :])


def _package(name: str, bound: str, advice: str, *, needed: bool) -> Finding:
    """Look at a package that cswf needs, or that only some need."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding("packages", name, "broken" if needed else "missing", "not installed", advice)
    if not _satisfies(version, bound):
        return Finding("packages", name, "broken", f"{version}, and {bound} is needed", advice)
    if name in ("torch", "torchvision"):  # each has to fit this machine, and both each other
        try:
            importlib.import_module(name)
        except Exception as error:  # a library that is not there, symbols of another version
            detail = f"{version} cannot be imported: {_one_line(error)}"
            return Finding("packages", name, "broken", detail, "install torch and torchvision anew, together")
    return Finding("packages", name, "ok", f"{version}, {bound} is needed" if needed else version)


def _devices() -> Iterator[Finding]:
    import torch

    from cswf_core.kernels.memory import total_memory

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = bytes_in_words(total_memory(torch.device("cpu")))
    yield Finding("devices", "cpu", "ok", f"{cores} cores, {memory} of memory")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        yield _no_cuda()
    for index in range(count):
        yield _cuda(torch.device("cuda", index))


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

    try:
        torch.ones(2, device=device).sum().item()
        capability = torch.cuda.get_device_capability(device)
        detail = f"{torch.cuda.get_device_name(device)}, {bytes_in_words(total_memory(device))} of memory"
    except Exception as error:  # no code for this card, a card that has failed
        detail = f"it cannot compute: {_one_line(error)}"
        return Finding("devices", str(device), "broken", detail, "install a PyTorch that is built for this GPU")
    if usable(device):
        return Finding("devices", str(device), "ok", f"{detail}, with Triton's kernels")
    if capability >= OLDEST_CAPABILITY:
        advice = "install triton for steps that are several times as fast"
    else:
        oldest, this = (".".join(map(str, each)) for each in (OLDEST_CAPABILITY, capability))
        advice = f"they need compute capability {oldest}, and this GPU has {this}"
    return Finding("devices", str(device), "missing", f"{detail}, without Triton's kernels", advice)


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
    place = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=place):
            return ""
    except OSError as error:
        return f"{place} cannot be written ({error.strerror or error})"


def _room(name: str, folder: Path) -> Finding:
    """Look at the free space of a folder's disk."""
    free = shutil.disk_usage(_existing(folder)).free
    detail = f"{bytes_in_words(free)} free in {folder}"
    if free >= TOO_LITTLE:
        return Finding("folders", name, "ok", detail)
    advice = "make room: samples and checkpoints of one run can take gigabytes"
    return Finding("folders", name, "broken", detail, advice)


def _existing(folder: Path) -> Path:
    """Return a folder, or the nearest above it that exists."""
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())


def _one_line(error: BaseException) -> str:
    """Return an error's text in one line, not too long; its name if it has none."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"
