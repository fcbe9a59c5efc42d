"""What a projection has fitted to the data is in the model: sampling draws from the filters of the run."""

from __future__ import annotations

import shutil
from pathlib import Path

import attrs
import pytest
import torch
from torch import Tensor

from cswf_core.errors import PluginError, RunError
from cswf_core.flow.flow import Flow
from cswf_core.interfaces import Draw, Key, ProjectionSampler, ProjectionWrapper, Space
from cswf_core.model import Model, load_model
from cswf_core.model.format import ModelHeader, filters_file, read_filters
from cswf_core.model.requests import SampleRequest
from cswf_core.model.writer import ModelWriter
from cswf_core.recipe import RecipeError, build_flow, load_recipe
from cswf_core.runs.durable import fingerprint
from cswf_plugins.datasets.digits import Digits
from cswf_plugins.projections.data_covariance import DataCovariance
from cswf_plugins.projections.exemplars import Exemplars, in_proportion
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.low_rank import LowRank
from tests.model.conftest import SMALL, WHITENED, saving, write_header

GRIDS = "schedule={use: pyramid, entries: ['(4×4) [4]', '(8×8) [5, 3]'], steps: 4, directions: 40}"
PIECES = "projection={use: exemplars, of: low-rank, pieces: 300}"
OVERRIDES = (*WHITENED, GRIDS, PIECES, "condition=none", "particles.count=200")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Flow, Tensor, Path]:
    """A flow along pieces of the data, where the particles it carries along began, and the model's folder."""
    folder = tmp_path_factory.mktemp("pieces")
    flow = saving(folder, "digits", *OVERRIDES, "particles.offline=20")
    before = flow.offline_samples().x
    flow.run()
    return flow, before, folder


@pytest.fixture(scope="module")
def model(run) -> Model:
    """The model of that flow."""
    return load_model(run[2])


def test_a_model_of_pieces_of_the_data_is_sampled_with_the_data_gone(model, monkeypatch):
    with_data = model.sample(20, device="cpu")
    monkeypatch.setattr(Digits, "load", lambda *_: pytest.fail("the data were loaded"))
    model.flow(torch.device("cpu")).recognise()
    assert torch.equal(load_model(model.folder).sample(20, device="cpu").x, with_data.x)


def test_particles_carried_along_end_where_the_model_takes_them(run, model):
    flow, before, _ = run
    request = SampleRequest(flow.conditions.take, 20, 0, before)
    sampled = model._samples(request, model.flow(torch.device("cpu")), None)
    torch.testing.assert_close(sampled.x, flow.offline_samples().x, atol=1e-4, rtol=0)
    torch.testing.assert_close(model.retrace(device="cpu").x, flow.samples().x, atol=1e-4, rtol=0)


def test_each_stage_has_a_file_of_filters_in_half_precision(model):
    header = model.header
    assert [entry.stage for entry in header.filters] == [0, 1, 2]
    for entry in header.filters:
        path = filters_file(model.folder, entry.stage)
        assert (entry.file, entry.sha256) == (path.name, fingerprint(path))
        found = read_filters(model.folder, header, entry.stage)
        assert {name: tensor.dtype for name, tensor in found.items()} == {
            "filters": torch.float16,
            "share": torch.float64,
        }
        assert found["filters"].shape == (300, (16, 25, 9)[entry.stage])
    assert header.cost.bytes == sum(entry.bytes for entry in header.files)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "filters-01.safetensors is missing"),
        (lambda path: path.write_bytes(b"short"), "filters-01.safetensors has 5 bytes and should have"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x55"), "its checksum differs"),
    ],
)
def test_damaged_filters_are_refused(damage, said, model, tmp_path):
    folder = shutil.copytree(model.folder, tmp_path / "copy")
    damage(filters_file(folder, 1))
    with pytest.raises(RunError, match=said):
        load_model(folder)


def test_a_header_that_lists_other_filters_is_refused(model, tmp_path):
    folder = shutil.copytree(model.folder, tmp_path / "copy")
    header = attrs.asdict(ModelHeader.read(folder / "model.json"))
    for filters in (header["filters"][::-1], header["filters"][:1] * 2):
        write_header(folder, {**header, "filters": filters})
        with pytest.raises(RunError, match="filters should be in the order of the 3 stages"):
            load_model(folder)
    write_header(folder, {**header, "filters": header["filters"][:2]})
    with pytest.raises(RunError, match="lacks what the projection has fitted to the data for stage"):
        load_model(folder).sample(2, device="cpu")


def begun(folder: Path, *overrides: str) -> tuple[Flow, ModelWriter]:
    recipe = load_recipe("digits", [*SMALL, *OVERRIDES, *overrides])
    writer = ModelWriter(folder, recipe)
    return build_flow(recipe, device="cpu", observers=[writer]), writer


@pytest.mark.parametrize("killed", [2, 4, 6])
def test_a_resumed_run_leaves_the_same_filters_and_draws_from_them(killed, tmp_path, monkeypatch):
    """Also where a fit to the same data would give others, as on another device."""
    whole = tmp_path / "whole"
    broken = tmp_path / "broken"
    samples = begun(whole)[0].run()
    flow, writer = begun(broken)
    for state in flow:
        if state.total_step == killed:
            snapshot = flow.snapshot()
            remembered = writer.keep()
        if state.total_step == killed + 3:
            break
    stage = snapshot.position.stage
    own = Exemplars.fitted

    def other(self, space: Space, z: Tensor) -> ProjectionSampler:
        assert self.patch != (4, 5, 3)[stage] or not snapshot.position.step, "filters were fitted again"
        return own(self, space, z)

    monkeypatch.setattr(Exemplars, "fitted", other)
    flow, writer = begun(broken)
    writer.recall(remembered, killed)
    kept = {f"filters-{number:02}.safetensors" for number in range(stage + 1)}
    assert {path.name for path in broken.glob("filters-*")} == kept
    flow.restore(snapshot)
    assert torch.equal(flow.run().x, samples.x)
    first, second = (ModelHeader.read(folder / "model.json") for folder in (whole, broken))
    assert first.files == second.files
    assert {path.name: path.read_bytes() for path in whole.glob("*.safetensors")} == {
        path.name: path.read_bytes() for path in broken.glob("*.safetensors")
    }


def test_filters_that_were_changed_are_found_before_a_run_is_resumed(tmp_path):
    flow, writer = begun(tmp_path)
    next(iter(flow))
    remembered = writer.keep()
    path = filters_file(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    with pytest.raises(RunError, match=r"filters-00\.safetensors is not what was written"):
        begun(tmp_path)[1].recall(remembered, 1)


def drawn(sampler: ProjectionSampler, space: Space) -> Tensor:
    answer = sampler.sample(space, 30, Key(0, "directions").open())
    return answer if isinstance(answer, Tensor) else answer.dense()


@pytest.mark.parametrize(
    "sampler",
    [
        Exemplars(of=LowRank(patch=3), patch=3),
        Exemplars(of=LowRank(patch=9), patch=9, pieces=50),
        Exemplars(of=DataCovariance(patch=5), patch=3),
        HighPass(of=Exemplars(of=LowRank(patch=3), patch=5)),
        HighPass(of=DataCovariance(patch=9)),
    ],
)
def test_a_sampler_made_again_of_its_tensors_draws_the_same_directions(sampler):
    """Wrappers around others, too."""
    space = Space((1, 8, 8))
    fitted = sampler.fitted(space, torch.randn(64, 200).cumsum(dim=0))
    tensors = {name: part.clone() for name, part in fitted.tensors().items()}
    again = sampler.of_tensors(space, tensors, torch.empty(64, 0))
    assert torch.equal(drawn(fitted, space), drawn(again, space))


def test_pieces_are_kept_as_often_as_their_weights_say():
    weights = torch.tensor([1.0, 0.0, 2.0, 5.0], dtype=torch.float64)
    assert torch.bincount(in_proportion(weights, 80), minlength=4).tolist() == [10, 0, 20, 50]
    assert in_proportion(weights, 1).tolist() == [3]


@attrs.frozen(kw_only=True)
class Forgetful(ProjectionSampler):
    """Looks at the data, and does not say what it has seen."""

    sees_data = True

    def fitted(self, space: Space, z: Tensor) -> ProjectionSampler:
        return self

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor:
        return draw.sphere(count, space.dimension)


@attrs.frozen(kw_only=True)
class Around(ProjectionWrapper):
    """Hands all on."""

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor:
        return self.inner(space, count, draw).theta


@attrs.frozen(kw_only=True)
class Selfish(Around):
    """Looks at the data itself, and restores the other one only."""

    def fitted(self, space: Space, z: Tensor) -> ProjectionSampler:
        return attrs.evolve(self, of=self.of.fitted(space, z))


@pytest.mark.parametrize(
    ("projection", "named"),
    [
        (Forgetful(), "Forgetful"),
        (Around(of=Forgetful()), "Forgetful"),
        (Selfish(of=DataCovariance(patch=3)), "Selfish"),
    ],
)
def test_a_projection_that_keeps_nothing_of_the_data_works_in_runs_and_not_in_models(
    projection, named, tmp_path
):
    recipe = load_recipe("digits", [*SMALL, "schedule.steps=2"])
    checked = attrs.evolve(recipe.projection, part=projection)
    recipe = attrs.evolve(recipe, projection=checked)
    assert torch.isfinite(build_flow(recipe, device="cpu").run().x).all()
    flow = build_flow(recipe, device="cpu", observers=[ModelWriter(tmp_path, recipe)])
    with pytest.raises(PluginError, match=rf"{named} looks at the data, .* write `tensors` and `of_tensors`"):
        flow.run()
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_that_saves_a_model_of_such_a_projection_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    wishes = ["projection=mine", "model.save=true"]
    with pytest.raises(RecipeError, match="Mine looks at the data, and a saved model"):
        load_recipe("digits", wishes, plugins_dir=tmp_path)
    assert load_recipe("digits", wishes[:1], plugins_dir=tmp_path).projection.name == "mine"


MINE = '''
import attrs
from cswf_core import hookimpl
from cswf_core.interfaces import ProjectionSampler


@attrs.frozen(kw_only=True)
class Mine(ProjectionSampler):
    """Looks at the data."""

    sees_data = True

    def fitted(self, space, z):
        return self

    def sample(self, space, count, draw):
        return draw.sphere(count, space.dimension)


@hookimpl
def register_projections(register):
    register("mine", Mine)
'''
