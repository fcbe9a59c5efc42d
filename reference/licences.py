"""The licences of all packages that `make` installs, as a page: `python -m reference.licences` writes it.

They are read from the packages themselves. Those that only other machines or versions of Python need are
written down here.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
PAGE = ROOT / "docs" / "licences.md"

LONGEST = 60
"""Letters of a licence's name; some packages have the whole text in its place."""

NVIDIA = "NVIDIA's licence for its CUDA libraries"

ELSEWHERE = {
    "cffi": "MIT-0",
    "cuda-bindings": NVIDIA,
    "cuda-pathfinder": "Apache-2.0",
    "exceptiongroup": "MIT",
    "narwhals": "MIT",
    "pycparser": "BSD-3-Clause",
    "six": "MIT",
    "tomli": "MIT",
}
"""Packages that are not on every machine."""

SHORT = {
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "BSD License": "BSD",
    "BSD 3-Clause License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""Names of licences that are written otherwise."""

KNOWN = {
    *("0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "MIT", "MIT-0"),
    *("MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib", NVIDIA),
}
"""Licences that allow what cswf does: to use a package unchanged, and to name it as a dependency."""

HEAD = """# Licences

cswf itself is under the [Apache licence 2.0](../LICENSE). It has no code of other projects in it, and gives
none of them away: `make` and `pip` fetch the packages below from where their makers publish them. All of these
licences allow that, and any use of cswf. NVIDIA's packages come with PyTorch, on x86-64 only.

`make licences` writes this page, from the packages' own words and `requirements.lock`.

| package | versions | licence |
|---|---|---|
"""


def locked() -> dict[str, list[str]]:
    """Return the packages of the lock with their versions, of which each holds for some machines."""
    versions: dict[str, list[str]] = {}
    for name, version in re.findall(
        r"^([A-Za-z0-9._-]+)==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE
    ):
        versions.setdefault(name, []).append(version)
    return versions


def licence_of(name: str) -> str:
    """Return the licence of a package: as it says itself if it is installed, else as `ELSEWHERE` does."""
    if name in ELSEWHERE or name.startswith("nvidia-"):
        return ELSEWHERE.get(name, NVIDIA)
    try:
        facts = metadata(name)
    except PackageNotFoundError:
        return "unknown"
    classifiers = [c.rpartition(" :: ")[2] for c in facts.get_all("Classifier") or [] if "License ::" in c]
    words = [facts[key] for key in ("License-Expression", "License") if key in facts]
    named = [text for text in words if text and text != "UNKNOWN" and len(text) <= LONGEST and "\n" not in text]
    return named[0] if named and named[0] not in SHORT else " or ".join(map(_short, named[:1] or classifiers))


def _short(licence: str) -> str:
    return SHORT.get(licence, licence)


def parts(licence: str) -> set[str]:
    """Return the licences that one is made of: `MIT OR Apache-2.0` is made of two."""
    return set(re.split(r" (?:AND|OR|or) ", licence))


def page() -> str:
    """Return the page."""
    rows = [f"| {name} | {', '.join(versions)} | {licence_of(name)} |\n" for name, versions in locked().items()]
    return HEAD + "".join(rows)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
