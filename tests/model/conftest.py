"""Small runs that save a model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cswf_core.documents import SEAL, seal
from cswf_core.flow.flow import Flow
from cswf_core.model.writer import ModelWriter
from cswf_core.recipe import build_flow, load_recipe
from tests.conftest import installed

SMALL = ("model.save=true", "model.knots=13", "schedule.steps=6", "schedule.directions=128")

WHITENED = ("coordinates={use: whitened, exponent: 0.8}", "particles.start=gaussian")


def saving(folder: Path, recipe: str = "digits", *overrides: str) -> Flow:
    """A flow that leaves its model in a folder; six steps unless said otherwise."""
    loaded = load_recipe(recipe, [*SMALL, *overrides], registry=installed())
    return build_flow(loaded, device="cpu", observers=[ModelWriter(folder, loaded)])


def write_header(folder: Path, header: dict[str, Any]) -> None:
    """Write a header that has been changed, with the checksum that it has now."""
    plain = {key: value for key, value in header.items() if key != SEAL}
    (folder / "model.json").write_text(json.dumps(seal(plain)), encoding="utf-8")


@pytest.fixture(scope="session")
def digits_model(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The model of a short run of the demo, by class."""

    def fill(folder: Path) -> None:
        saving(folder / "model").run()

    return made_once("digits-with-model", fill) / "model"


@pytest.fixture(scope="session")
def whitened_model(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The model of a run by class in whitened coordinates, from a Gaussian, with its samples beside it."""

    def fill(folder: Path) -> None:
        samples = saving(folder / "model", "digits", "schedule.steps=30", *WHITENED).run()
        torch.save(samples.x, folder / "samples.pt")

    return made_once("digits-whitened", fill) / "model"


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    """Copies a model's folder, to be damaged."""
    return lambda folder: Path(shutil.copytree(folder, tmp_path / "copy"))
