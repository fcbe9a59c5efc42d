"""What tests of plugins share."""

from __future__ import annotations

import pytest


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """No test but those of the real files looks at the real folder, or writes into it."""
    monkeypatch.setenv("CSWF_DATA", str(tmp_path / "data"))
