"""A model is written as its run goes, and a run that was killed leaves the same files in the end."""

from __future__ import annotations

import attrs
import pytest
import torch

import cswf_core.model.format
from cswf_core.errors import CswfError, RunError
from cswf_core.flow.tables import StepTables
from cswf_core.interfaces import FittedCDF
from cswf_core.model.format import ModelHeader, SavedStep, read_shard, write_shard
from cswf_core.model.writer import ModelWriter
from cswf_core.recipe import build_flow, load_recipe
from cswf_plugins.cdfs.sorted import SortedRows
from tests.model.conftest import SMALL, WHITENED, saving
from tests.runs.unfinished import leave_unfinished

GRIDS = "schedule={use: pyramid, entries: ['(2×2) [2]', '(8×8) [8]'], steps: 6, directions: 40}"
LOCAL = "projection={use: locally-connected, patch: 8}"
STEPS = 12


@pytest.fixture(autouse=True, scope="module")
def _small_shards():
    """Shards of four steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cswf_core.model.format, "SHARD_BYTES", 4 * 10 * 40 * (4 + 3 + 7))
        yield


def begun(folder, *overrides):
    recipe = load_recipe("digits", [*SMALL, GRIDS, LOCAL, "particles.count=60", *overrides])
    writer = ModelWriter(folder, recipe)
    return build_flow(recipe, device="cpu", observers=[writer]), writer


def shards(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """The shards of a run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    begun(folder)[0].run()
    assert len(shards(folder)) == 4
    return shards(folder)


def until(flow, step: int) -> None:
    """Go on to a step."""
    if flow.position.total < step:
        next(state for state in flow if state.total_step == step)


@pytest.mark.parametrize(("kept", "lost"), [(1, 5), (4, 5), (6, 0), (9, 5)])
def test_a_killed_and_resumed_run_leaves_the_same_shards(kept, lost, whole, tmp_path):
    flow, writer = begun(tmp_path)
    until(flow, kept)
    snapshot, remembered = flow.snapshot(), writer.keep()
    until(flow, min(kept + lost, STEPS))
    del flow, writer  # killed
    flow, writer = begun(tmp_path)
    leave_unfinished(tmp_path / "tables-00009.safetensors")
    writer.recall(remembered, kept)
    flow.restore(snapshot)
    flow.run()
    assert shards(tmp_path) == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", *whole]
    assert ModelHeader.read(tmp_path / "model.json").complete


def test_a_killed_run_leaves_what_was_fitted_to_the_data_once_more(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    begun(whole, *WHITENED)[0].run()
    flow, writer = begun(broken, *WHITENED)
    until(flow, 9)
    snapshot, remembered = flow.snapshot(), writer.keep()
    flow, writer = begun(broken, *WHITENED)
    writer.recall(remembered, 9)
    flow.restore(snapshot)
    flow.run()
    assert len(shards(whole)) == 5
    assert shards(broken) == shards(whole)
    first, second = (ModelHeader.read(folder / "model.json") for folder in (whole, broken))
    assert first.files == second.files


def test_a_run_that_begins_anew_leaves_the_same_shards(whole, tmp_path):
    flow, _ = begun(tmp_path)
    until(flow, 9)
    flow, writer = begun(tmp_path)
    writer.recall({}, 0)
    assert list(tmp_path.iterdir()) == []
    flow.run()
    assert shards(tmp_path) == whole


def test_a_run_that_was_killed_after_its_last_step_is_completed(whole, tmp_path):
    flow, writer = begun(tmp_path)
    flow.run()
    snapshot, remembered = flow.snapshot(), writer.keep()
    cost = ModelHeader.read(tmp_path / "model.json").cost
    flow, writer = begun(tmp_path)
    writer.recall(remembered, STEPS)
    flow.restore(snapshot)
    flow.run()
    assert shards(tmp_path) == whole
    assert ModelHeader.read(tmp_path / "model.json").complete
    assert cost.share > 0
    assert ModelHeader.read(tmp_path / "model.json").cost == cost


@pytest.mark.parametrize(("number", "damage"), [(0, "missing"), (1, "cut"), (1, "changed")])
def test_a_damaged_shard_is_found_before_anything_is_removed(number, damage, tmp_path):
    flow, writer = begun(tmp_path)
    until(flow, 6)
    remembered = writer.keep()
    until(flow, STEPS)
    path = tmp_path / f"tables-{number:05}.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        content[-1] ^= 1
        path.write_bytes(content if damage == "changed" else content[: len(content) // 2])
    before = shards(tmp_path)
    _, writer = begun(tmp_path)
    with pytest.raises(RunError, match=path.name):
        writer.recall(remembered, 6)
    assert shards(tmp_path) == before


def test_a_flow_that_goes_another_round_is_refused(tmp_path):
    flow, _ = begun(tmp_path)
    flow.again(2)
    with pytest.raises(RunError, match="maps are of one round"):
        flow.run()


def test_the_header_is_there_from_the_beginning_and_never_more_than_a_shard_is_in_memory(tmp_path):
    flow, writer = begun(tmp_path)
    for state in flow:
        on_disk = sum(len(read_shard(path)) for path in tmp_path.glob("*.safetensors"))
        assert on_disk > state.total_step - 4
        assert ModelHeader.read(tmp_path / "model.json").complete is (state.total_step == STEPS + 1)
        if state.total_step == 6:
            writer.keep()
            assert ModelHeader.read(tmp_path / "model.json").steps == 6


def test_maps_longer_than_tables_can_be_are_refused(tmp_path):
    flow = saving(tmp_path, "digits", "particles.scale=1e10")
    with pytest.raises(RunError, match="longer than 4e9"):
        flow.run()


def test_steps_are_the_same_read_as_written(tmp_path):
    ends = torch.zeros(2, 5, 2, dtype=torch.uint8)
    tables = [StepTables.of(torch.randn(2, 5), ends, torch.randn(2, 5, 7), 8) for _ in range(3)]
    steps = [SavedStep(3, number, 0.1 * number, own) for number, own in enumerate(tables)]
    path = tmp_path / "tables-00000.safetensors"
    assert attrs.asdict(write_shard(path, steps))["steps"] == 3
    for one, other in zip(steps, read_shard(path), strict=True):
        assert (other.stage, other.number, other.eta) == (3, one.number, one.eta)
        assert all(map(torch.equal, other.tables.tensors, one.tables.tensors))


def test_a_map_that_is_not_finite_is_found_though_tables_hold_whole_numbers(tmp_path, monkeypatch):
    steps: list[torch.Tensor] = []
    icdf = SortedRows.icdf

    def broken(fitted: FittedCDF, levels: torch.Tensor) -> torch.Tensor:
        steps.append(levels)
        return icdf(fitted, levels) * (torch.nan if len(steps) > 40 else 1)

    monkeypatch.setattr(SortedRows, "icdf", broken)
    flow = saving(tmp_path, "digits", "cdf=sorted", "condition=none", "schedule.steps=60")
    with pytest.raises(CswfError, match="not finite"):
        flow.run()
    assert len(steps) > 40
