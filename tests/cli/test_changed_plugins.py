"""Models and runs are refused where the code of a plugin has changed since, unless a person says otherwise."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from cswf_core import load_recipe
from cswf_core.errors import RunError
from cswf_core.plugins import BUILTIN
from cswf_core.recipe.provenance import _change, built_ins_changed, refuse_changed_plugins
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch
from tests.cli.conftest import Stop, facts, write_plugin

SMALL = (
    "projection=turned",
    "particles.count=30",
    "schedule.steps=6",
    "schedule.directions=60",
    "schedule.step_size=8",
    "data.classes=[0, 1]",
    "evaluate.metrics=[]",
    "outputs.checkpoint_every=2",
    "outputs.frames=0",
    "model.save=true",
    "model.knots=9",
)


def write_plugins(folder: Path) -> Path:
    body = """
    def sample(self, space, count, draw):
        return draw.sphere(count, space.dimension).roll(PLACES, dims=1)
    """
    write_plugin(folder / "turned.py", "projection", body, "from turning import PLACES")
    (folder / "turning.py").write_text("PLACES = 1\n")
    return folder


def run(plugins: Path, folder: Path, stop: Stop | None = None) -> Path:
    recipe = load_recipe("digits", SMALL, plugins_dir=plugins)
    try:
        launch(recipe, RunFolder(folder), device="cpu", observers=[] if stop is None else [stop])
    except KeyboardInterrupt:
        assert stop is not None
    return folder


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> Path:
    """A folder with plugins, a run that is done and one that was stopped at its fifth step."""
    folder = tmp_path_factory.mktemp("originals")
    plugins = write_plugins(folder / "plugins")
    run(plugins, folder / "done")
    run(plugins, folder / "halted", Stop(5))
    return folder


@pytest.fixture
def folder(originals, tmp_path) -> Path:
    """A copy of these, to be changed."""
    return Path(shutil.copytree(originals, tmp_path / "copy"))


COMMANDS = {
    "sample": ("sample", "done", "--count", "3", "--device", "cpu", "--out", "new", "--force"),
    "inspect": ("inspect", "done", "--check"),
    "resume": ("resume", "halted", "--device", "cpu", "--quiet"),
    "update": ("update", "done", "--data", "{use: digits, classes: [2]}", "--device", "cpu", "--steps", "2"),
}


def arguments(folder: Path, name: str) -> list[str]:
    """A command on the copies."""
    words = [str(folder / word) if word in ("done", "halted", "new") else word for word in COMMANDS[name]]
    return [*words, "--plugins-dir", str(folder / "plugins")]


def comment(folder: Path, file: str) -> None:
    path = folder / "plugins" / file
    path.write_text(path.read_text() + "# read again\n")


def turn(folder: Path) -> None:
    (folder / "plugins/turning.py").write_text("PLACES = 2\n")


def sha256(plugins: Path) -> str:
    return load_recipe("digits", SMALL, plugins_dir=plugins).projection.plugin.owner.sha256


@pytest.mark.parametrize("name", COMMANDS)
def test_with_the_code_of_the_run_all_go_on(cswf, folder, name):
    cswf.output(*arguments(folder, name))


@pytest.mark.parametrize("name", COMMANDS)
def test_changed_code_is_refused_with_both_digests_and_accepted_unless_directions_are_others(
    cswf, caplog, folder, name
):
    before = sha256(folder / "plugins")
    for file in ("turned.py", "turning.py"):
        comment(folder, file)
        now = sha256(folder / "plugins")
        assert now != before
        refusal = cswf.refusal(*arguments(folder, name))
        assert "was made with other code than is here: projection 'turned' (" in refusal
        assert f"has SHA-256 {now[:12]}…" in refusal
        assert f"had {before[:12]}…" in refusal
        assert "say --accept-changed-plugins" in refusal
    halted = shutil.copytree(folder / "halted", folder / "before")
    printed = cswf.output(*arguments(folder, name), "--accept-changed-plugins")
    assert "was made with other code, and goes on with this: projection 'turned'" in caplog.text
    assert "plugins are those of the run" not in printed
    if name == "resume":
        assert facts(folder / "halted")["samples_sha256"] == facts(folder / "done")["samples_sha256"]
    shutil.rmtree(folder / "halted")
    halted.rename(folder / "halted")
    turn(folder)
    last = cswf(*arguments(folder, name), "--accept-changed-plugins").err.strip().splitlines()[-1]
    assert re.search(
        r"stage constant: projection 'turned' \(.*\) draws other directions than it did before", last
    )


def test_the_record_of_a_run_has_the_digest_of_each_plugin_and_fingerprints_of_its_directions(originals):
    record = facts(originals / "done")
    plugins = record["plugins"]
    assert plugins["projection"]["sha256"] == sha256(originals / "plugins")
    assert all(re.fullmatch("[0-9a-f]{64}", each["sha256"]) for each in plugins.values())
    assert {"data", "projection", "cdf", "condition", "schedule", "coordinates"} <= plugins.keys()
    header = json.loads((originals / "done/model/model.json").read_text())
    assert list(record["directions"]) == ["0"]
    assert record["directions"]["0"] == header["stages"][0]["fingerprint"]
    assert facts(originals / "halted")["directions"] == record["directions"]


def test_a_plugin_that_took_no_part_then_is_refused_and_two_of_one_name_are_told_apart(folder):
    recipe = load_recipe("digits", SMALL, plugins_dir=folder / "plugins")
    others = [fact for fact in recipe.plugin_facts() if fact["name"] != "turned"]
    with pytest.raises(RunError, match=r"projection 'turned' \(.*\) took no part then"):
        refuse_changed_plugins(recipe, others, "it")
    same = {"kind": "projection", "name": "lines", "version": ""}
    one, two = ({**same, "distribution": f"{n}.py", "sha256": n} for n in ("one", "two"))
    assert not _change(two, [one, two])
    assert "two.py" in _change({**two, "sha256": "new"}, [one, two])


def test_built_in_plugins_are_left_to_their_fingerprints(cswf, caplog, folder, monkeypatch):
    """An edited file of theirs refuses nothing; a checkpoint says that last digits may differ."""

    def edited(facts: list[dict[str, str]]) -> list[dict[str, str]]:
        return [{**fact, "sha256": "0" * 64} if fact["distribution"] == BUILTIN else fact for fact in facts]

    recipe = load_recipe("digits", SMALL, plugins_dir=folder / "plugins")
    recorded = edited(recipe.plugin_facts())
    refuse_changed_plugins(recipe, recorded, "it")
    assert built_ins_changed(recipe, recorded)
    assert not built_ins_changed(recipe, recipe.plugin_facts())
    plugin_facts = type(recipe).plugin_facts
    monkeypatch.setattr(type(recipe), "plugin_facts", lambda self: edited(plugin_facts(self)))
    cswf.output(*arguments(folder, "resume"))
    assert "the files of built-in plugins have changed" in caplog.text
    cswf.output(*arguments(folder, "sample"))


def test_a_sweep_takes_no_run_of_other_code_for_its_own(cswf, tmp_path):
    plugins = write_plugins(tmp_path / "plugins")
    quick = [each for each in SMALL if not each.startswith(("model.", "outputs.checkpoint"))]
    sweep = ["sweep", "digits", *quick, "seed=0,1", "--plugins-dir", plugins, "--out", tmp_path / "sweep"]
    cswf.output(*sweep, "--quiet")
    (plugins / "turning.py").write_text("PLACES = 2\n")
    assert "was made with other code than is here: projection 'turned'" in cswf.refusal(*sweep, "--quiet")
