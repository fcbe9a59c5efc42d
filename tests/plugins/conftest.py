"""What tests of plugins share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

GOOD = '''
"""A projection along the axes."""
import attrs, torch
from cswf_core import hookimpl
from cswf_core.interfaces import ProjectionSampler, parameter

@attrs.frozen
class Axis(ProjectionSampler):
    """One coordinate at a time."""

    sign: float = parameter("which way", default=1.0)

    def sample(self, space, count, draw):
        index = draw.integers(space.dimension, count)
        return self.sign * torch.nn.functional.one_hot(index, space.dimension).to(draw.dtype)

@hookimpl
def register_projections(register):
    register("{name}", Axis)
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make a distribution that importlib.metadata finds, as pip would."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def installed(distribution: str, code: str, version: str = "1.0") -> None:
        module = distribution.replace("-", "_") + "_module"
        (site / f"{module}.py").write_text(code)
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[cswf]\nmain = {module}\n")

    yield installed
    for name in [name for name in sys.modules if name.endswith("_module")]:
        del sys.modules[name]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """No test but those of the real files looks at the real folder, or writes into it."""
    monkeypatch.setenv("CSWF_DATA", str(tmp_path / "data"))
