"""What an earlier version has left on a disk is read as it was: `earlier/` was written by commit 5e0d9a0."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from cswf_core.model import load_model
from cswf_core.recipe import load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch, resume
from cswf_core.session.update import read_predecessor
from tests.conftest import read_json

EARLIER = Path(__file__).parent / "earlier"


@pytest.fixture
def earlier(tmp_path) -> Path:
    return Path(shutil.copytree(EARLIER, tmp_path / "earlier"))


def test_a_model_of_format_3_gives_the_samples_that_it_gave(earlier, caplog):
    assert read_json(earlier / "done/model/model.json")["format"] == 3
    drawn = load_model(earlier / "done").sample(8, device="cpu").images().numpy()
    with np.load(earlier / "samples.npz") as then:
        apart = np.abs(drawn.astype(int) - then["images"].astype(int))
    assert apart.max() <= 2  # of 256 grey levels: processors round differently
    assert "is of format 3, which has no checksum of its own" in caplog.text


def test_a_run_that_was_stopped_goes_on_from_its_checkpoint(earlier, tmp_path):
    going_on, told = RunFolder(earlier / "stopped"), []
    recipe = load_recipe(earlier / "stopped/recipe.yaml")
    resume(recipe, going_on, device="cpu", announce=lambda step, lost: told.append((step, lost)))
    assert told == [(4, [])]
    launch(recipe, RunFolder(tmp_path / "anew"), device="cpu")
    first, second = (
        load_model(folder).sample(4, device="cpu").x for folder in (going_on.path, tmp_path / "anew")
    )
    assert float((first - second).abs().mean()) < 0.01


def test_the_end_of_a_run_can_be_updated(earlier):
    before = read_predecessor(RunFolder(earlier / "done"))
    assert before.facts["steps_done"] == 8
    assert before.shape == (1, 8, 8)
    assert before.lost == ()
