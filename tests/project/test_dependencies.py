"""What `make` installs: known to the byte, by licences that allow it, and audited."""

from __future__ import annotations

import re

import pytest

from tests.project.sources import read

LOCKS = ("requirements.lock", "requirements-audit.lock")


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_has_hashes_and_no_address(name):
    entries = re.split(r"^(?=[A-Za-z0-9])", read(name), flags=re.MULTILINE)[1:]
    assert len(entries) > 20
    for entry in entries:
        first, *hashes = entry.strip().splitlines()
        assert re.match(r"[A-Za-z0-9._-]+==\S+( ; .+)? \\$", first), first
        assert hashes
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in hashes), first
    assert "://" not in read(name)
    assert "index-url" not in read(name)


def test_make_installs_nothing_else_and_an_audit_that_reaches_no_database_fails():
    makefile = read("Makefile")
    assert "pip_audit --strict " in makefile
    assert "LOCKED := $(PIP) --require-hashes" in makefile
    assert re.findall(r"\$\((\w+)\) --requirement", makefile) == ["LOCKED", "LOCKED"]


KNOWN = set(
    re.split(
        "; ",
        "0BSD; Apache-2.0; Apache License 2.0; Apache Software License; BSD; BSD License; BSD-2-Clause; "
        "3-Clause BSD License; BSD-3-Clause; CC0-1.0; ISC; MIT; MIT License; MIT-0; MIT-CMU; MPL-2.0; PSF-2.0; "
        "Mozilla Public License 2.0 (MPL 2.0); Python Software Foundation License; Zlib",
    )
)
"""Licences that allow what cswf does: to use a package unchanged, and to name it as a dependency."""

NVIDIA = {
    *("LicenseRef-NVIDIA-Proprietary", "LicenseRef-NVIDIA-SOFTWARE-LICENSE", "NVIDIA Proprietary Software"),
    "Other/Proprietary License",
}
"""What NVIDIA's packages of CUDA, and no others, call theirs."""


def test_every_locked_package_is_listed_with_a_licence_that_allows_its_use():
    cells = [
        re.split(r" *\| *", line)[1:-1] for line in read("docs/licences.md").splitlines() if line[:1] == "|"
    ]
    rows = {re.sub("[._]", "-", row[0].lower()): row[-1] for row in cells}
    locked = set(re.findall(r"^([A-Za-z0-9._-]+)==", read("requirements.lock"), re.MULTILINE))
    assert locked <= rows.keys()
    for name in locked:
        allowed = KNOWN | NVIDIA if name.startswith(("nvidia-", "cuda-")) else KNOWN
        assert set(re.split(r" AND | OR |; ", rows[name])) <= allowed, name


def test_the_doctor_can_read_what_cswf_needs():
    """Each requirement is a name and its oldest version: `cswf_core/installation.py` reads no other forms."""
    listed, extras = re.search(
        r"^dependencies = \[(.*?)^\](.*?)^dev = ", read("pyproject.toml"), re.M | re.S
    ).groups()
    requirements = re.findall(r'^ +(".+),|^\w+ = \[(.+)\]$', f"{listed}{extras}", re.M)
    assert len(requirements) >= 15
    assert all(re.fullmatch(r'"[\w-]+>=[\d.]+"', first or second) for first, second in requirements)
