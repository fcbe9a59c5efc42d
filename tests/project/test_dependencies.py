"""What `make` installs: known to the byte, by licences that allow it, and audited."""

from __future__ import annotations

import json
import re

import pytest

from reference import audit, licences
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


def test_make_installs_nothing_else():
    makefile = read("Makefile")
    assert "LOCKED := $(PIP) --require-hashes" in makefile
    assert re.findall(r"\$\((\w+)\) --requirement", makefile) == ["LOCKED", "LOCKED"]


def test_every_locked_package_is_listed_with_a_licence_that_allows_its_use():
    rows = dict(re.findall(r"^\| (\S+) \| [^|]+ \| ([^|]+) \|$", read("docs/licences.md"), re.MULTILINE))
    del rows["package"]
    assert set(licences.locked()) == set(rows)
    assert {name for name, licence in rows.items() if not licences.parts(licence) <= licences.KNOWN} == set()


def test_an_audit_tells_apart_good_bad_and_unknown():
    fine = {"name": "a", "version": "1", "vulns": []}
    bad = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
    skipped = {"name": "c", "skip_reason": "not found"}
    for packages, status, words in (
        ([fine], 0, "1 packages: no known vulnerability"),
        ([fine, bad, skipped], 1, "b 2: PYSEC-1, mended in 3"),
        ([skipped], 3, "nothing was audited, as the database could not be reached"),
    ):
        ended, lines = audit.verdict(json.dumps({"dependencies": packages}), "")
        assert ended == status
        assert lines[0].startswith(words)
    assert audit.verdict("", "ConnectionError: no way there")[0] == 3
