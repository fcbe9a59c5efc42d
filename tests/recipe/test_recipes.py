"""Recipes: what merges, what overrides, and how mistakes are told."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
from pathlib import Path

import attrs
import hypothesis
import pytest
from hypothesis import strategies as st

from cswf_core.fields import kind_of
from cswf_core.interfaces import Owner
from cswf_core.nodes import Location, parse
from cswf_core.plugins import Plugin, Registry
from cswf_core.recipe import RecipeError, build_flow, builtin_recipes, choose, load_recipe
from cswf_core.recipe.recipe import _RecipeReader
from cswf_core.recipe.render import flattened, from_yaml, origin_of_every_value, to_yaml, with_origins
from cswf_core.recipe.sections import KEYS
from tests.fuzz.values import changed

MINIMAL = "data: digits\nschedule: {use: constant, steps: 5, directions: 7}\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a recipe into an empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)

    def written(text: str, name: str = "mine.yaml") -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
        return name

    return written


@pytest.fixture
def complaints(write, registry: Registry):
    """The lines that a faulty recipe gets."""

    def told(text: str, *overrides: str) -> list[str]:
        with pytest.raises(RecipeError) as error:
            load_recipe(write(text), overrides, registry=registry)
        return str(error.value).splitlines()

    return told


def test_a_recipe_needs_only_data_and_a_schedule(write, registry):
    recipe = load_recipe(write(MINIMAL), registry=registry)
    assert recipe.name == "mine"
    defaults = {"condition": "none", "projection": "uniform", "cdf": "histogram", "coordinates": "plain"}
    names = {path: choice.name for path, choice in recipe.choices().items()}
    assert names == {"data": "digits", **defaults, "schedule": "constant"}
    assert (recipe.schedule.part.steps, recipe.schedule.part.directions) == (5, 7)


def test_mappings_merge_and_lists_replace(write, registry):
    write(MINIMAL + "outputs: {log_every: 3, snapshots: [1, 2, 3]}\nseed: 4\n", "base.yaml")
    recipe = load_recipe(
        write("extends: base.yaml\nschedule: {steps: 9}\noutputs: {snapshots: [5]}\n"), registry=registry
    )
    assert (recipe.schedule.part.steps, recipe.schedule.part.directions) == (9, 7)
    assert (recipe.outputs.log_every, recipe.outputs.snapshots) == (3, (5,))
    assert (recipe.seed, recipe.name) == (4, "mine")


def test_several_bases_merge_from_left_to_right_and_one_that_is_named_often_is_read_once(write, registry):
    write(MINIMAL + "seed: 1\n", "sub/a.yaml")
    write("seed: 2\nparticles: {count: 8}\n", "sub/b.yaml")
    recipe = load_recipe(write("extends: [sub/a.yaml, sub/b.yaml]\n"), registry=registry)
    assert (recipe.seed, recipe.particles.count) == (2, 8)
    write(MINIMAL, "r30.yaml")
    for i in range(29, 0, -1):
        write(f"extends: [r{i + 1}.yaml, r{i + 1}.yaml]\n", f"r{i}.yaml")
    assert load_recipe("r1.yaml", registry=registry).data.name == "digits"


@pytest.mark.parametrize(
    ("section", "amplifier", "labels"),
    [
        ("{use: continuous}", 10, None),
        ("{use: one-hot, amplifier: 5}", 5, "balanced"),
        ("{amplifier: 6}", 6, "balanced"),
    ],
)
def test_another_plugin_replaces_the_section_and_the_same_one_merges(
    write, registry, section, amplifier, labels
):
    write(MINIMAL + "condition: {use: one-hot, amplifier: 3, labels: balanced}\n", "base.yaml")
    part = load_recipe(write(f"extends: base.yaml\ncondition: {section}\n"), registry=registry).condition.part
    assert (part.amplifier, getattr(part, "labels", None)) == (amplifier, labels)


def test_null_means_the_default(write, registry):
    text = "extends: digits\ncondition: null\nparticles:\nevaluate:\noutputs: {columns: null}\n"
    recipe = load_recipe(write(text), registry=registry)
    assert recipe.condition.name == "none"
    assert recipe.particles.count is None
    assert recipe.metrics == ()
    assert recipe.outputs.columns == 10


def test_overrides_change_values_and_reach_into_lists(registry):
    overrides = [
        "schedule.steps=12",
        "outputs.snapshots.1=77",
        "evaluate.metrics.0.directions=5",
        "condition=none",
        "projection.reuse=all",
        "name=no",
        "particles={count: 3}",
    ]
    recipe = load_recipe("digits", overrides, registry=registry)
    assert recipe.schedule.part.steps == 12
    assert recipe.outputs.snapshots[:3] == (0, 77, 10)
    assert recipe.metrics[0].part.directions == 5
    assert recipe.condition.name == "none"
    assert recipe.reuse == "all"
    assert recipe.name == "no"
    assert recipe.description.startswith("Handwritten")
    assert recipe.particles.count == 3


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (
            "schedule.stepz=1",
            ":1:1: unknown key 'stepz' of schedule 'constant'; did you mean 'steps' or 'step_size'?",
        ),
        ("schedule.steps=many", ":1:16: schedule.steps must be a whole number, got the text 'many'"),
        ("outputs.log_every=1e40", ":1:19: outputs.log_every is too large, 1e40"),
        ("steps", "command line:1:1: 'steps' is not of the form key.path=value"),
        ("outputs.snapshots.9=1", "'outputs.snapshots' has 7 entries, counted from 0, and '9' is none of them"),
        ("outputs.snapshots.first=1", "'first' is none of them"),
        ("seed.low=1", "'seed' is a single value and has no 'low'"),
        ("extends=toy-joint", "command line:1:1: 'extends' cannot be changed here"),
        ("data=[1", "command line:1:8: not valid YAML"),
        ("a..b=1", "is not of the form"),
    ],
)
def test_mistakes_in_overrides_have_a_place(override, complaint, registry):
    with pytest.raises(RecipeError) as error:
        load_recipe("digits", [override], registry=registry)
    assert complaint in str(error.value)


def test_every_mistake_is_reported_in_one_go(complaints):
    lines = complaints(
        "data: digit\n"
        "condition: {use: one-hot, amplifier: loud, joint: unifrom}\n"
        "schedul: constant\n"
        "outputs: {log_every: 0, columns: 2.5}\n"
        "seed: -1\n"
        "particles: 5\n"
        "projection: {reuse: 2}\n"
        "evaluate: {metrics: {use: fid}}\n"
    )
    assert lines == [
        "mine.yaml:3:1: unknown key 'schedul'; did you mean 'schedule'?",
        "mine.yaml:5:7: seed must be at least 0 and at most 9,223,372,036,854,775,807, got -1",
        "mine.yaml:6:12: particles must be a mapping with count, offline, scale, start, clip, precision, got 5",
        "mine.yaml:4:22: outputs.log_every must be at least 1, got 0",
        "mine.yaml:4:34: outputs.columns must be a whole number, got 2.5",
        "mine.yaml:1:7: unknown dataset 'digit'; did you mean 'digits'?",
        "mine.yaml:2:38: condition.amplifier must be a number, got the text 'loud'",
        "mine.yaml:2:51: condition.joint must be one of 'uniform', 'equal', 'dimension', 'full', "
        "got the text 'unifrom'; did you mean 'uniform'?",
        "mine.yaml:1:1: missing key 'schedule'",
        "mine.yaml:8:21: evaluate.metrics must be a list of metrics",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "mine.yaml:1:1: a recipe is a mapping of keys to values"),
        ("- 1\n", "mine.yaml:1:1: a recipe is a mapping of keys to values"),
        ("data: digits\nschedule: constant\n", "mine.yaml:2:11: missing key 'steps' of schedule 'constant'"),
        ("data: npz\n", "mine.yaml:1:7: missing key 'path' of dataset 'npz'"),
        ("data: {use: digits, classes: [1, x]}\n", "mine.yaml:1:34: data.classes.1 must be a whole number"),
        ("data: {use: [digits]}\n", "mine.yaml:1:13: data needs 'use'"),
        ("extends: nowhere\n", "mine.yaml:1:10: extends: there is no built-in recipe 'nowhere'"),
        ("extends: nowhere.yaml\n", "mine.yaml:1:10: extends: nowhere.yaml does not exist"),
        (
            f"extends: [{', '.join(['digits'] * 33)}]\n",
            "mine.yaml:1:10: extends takes a recipe's name, or a list of at most 32",
        ),
        ("extends: [mine.yaml]\n", "mine.yaml:1:11: extends goes in a circle: mine.yaml → mine.yaml"),
        ("extends: {a: 1}\n", "mine.yaml:1:10: extends takes a recipe's name"),
        ("<<: {a: 1}\n", "unknown key '<<'; use 'extends' to build on a recipe"),
        ("data: {use: npz, path: ~nobody99/x.npz}\n", "mine.yaml:1:24: data.path must be a path"),
        ("extends: ~nobody99/x.yaml\n", "mine.yaml:1:10: extends: '~nobody99/x.yaml' is no usable path"),
        ("data: {use: digits, classes: [3, 12]}\n", "mine.yaml:1:30: data.classes must be digits from 0 to 9"),
        (
            "coordinates: {exponent: 0.5}\n",
            "unknown key 'exponent' of coordinates 'plain'; coordinates 'principal' and 'whitened' have it",
        ),
        ("cdf: {use: sorted, tail: 0.1}\n", "unknown key 'tail' of cdf 'sorted'; cdf 'histogram' has it"),
        ("model: {saved: true}\n", "mine.yaml:1:9: unknown key 'saved' of 'model'; did you mean 'save'?"),
        ("model: {knots: 12}\n", "mine.yaml:1:16: model.knots must be an odd number, such as 13, got 12"),
        (
            "online: {arrivals: [digits]}\nmodel:\n  save: true\n",
            "mine.yaml:3:9: model.save: a model's maps are of data that are all there from the start",
        ),
        ("online: {arrivals: digits}\n", "mine.yaml:1:20: online.arrivals must be a list of datasets"),
        ("online: {arrivals: [digit]}\n", "mine.yaml:1:21: unknown dataset 'digit'; did you mean 'digits'?"),
        (
            "cdf: {particles: {share: 0.5, count: 9}}\n",
            "mine.yaml:1:18: 'cdf.particles': a part is {share: …} or {count: …}, one of the two",
        ),
        ("cdf: {data: {}}\n", "mine.yaml:1:13: 'cdf.data': a part is {share: …} or {count: …}, one of the two"),
        ("cdf: {data: {shar: 1}}\n", "mine.yaml:1:14: unknown key 'shar' of 'cdf.data'; did you mean 'share'?"),
        (
            "cdf: {data: {share: 1.5}}\n",
            "mine.yaml:1:21: cdf.data.share must be above 0 and at most 1, got 1.5",
        ),
        ("particles: {clip: 0}\n", "mine.yaml:1:19: particles.clip must be above 0 and at most"),
        ("particles: {offline: -1}\n", "mine.yaml:1:22: particles.offline must be at least 0"),
        ("outputs: {checkpoint_every: 10mins}\n", "'10mins' is not a number of steps such as 500, a time such"),
        ("evaluate: [fid]\n", "mine.yaml:1:11: evaluate must be a mapping with 'metrics'"),
        ("observers: tensorboard\n", ":1:12: observers must be a list of observers (write [tensorboard])"),
        ("evaluate: {metrics: [FID]}\n", "mine.yaml:1:22: unknown metric 'FID'; did you mean 'fid'?"),
        ("metrics: fid\n", "mine.yaml:1:1: unknown key 'metrics'; did you mean 'evaluate.metrics'?"),
        ("hidden: centre\n", "mine.yaml:1:1: unknown key 'hidden'; did you mean 'condition.hidden'?"),
        ("condition: {use: mask, hidden: Center}\n", "got the text 'Center'; did you mean 'centre'?"),
        ("observers: [tensorbord]\n", ":1:13: unknown observer 'tensorbord'; did you mean 'tensorboard'?"),
        ("outputs: {snapshots: 5}\n", "must be a list, each item a whole number, got 5 (write [5])"),
        ("particles: {count: 10k}\n", "must be a whole number, got the text '10k' (write 10000)"),
        ("particles: {clip: 20%}\n", "must be a number, got the text '20%' (write 0.2)"),
        ("data: {use: toy-2d, target: []}\n", "target must name at least one component"),
        (
            "data: {use: toy-2d, target: [{mean: [1]}]}\n",
            "mine.yaml:1:37: data.target.0.mean must be a list of 2: a number, a number, got a list of 1",
        ),
        ("data: {use: toy-2d, target: [{mean: [1, 2], weight: 0}]}\n", "weight must be above 0, got 0"),
        (
            "data: digits\nprojection: conv-stack\n"
            "schedule: {use: pyramid, entries: ['(4×4) [4]', '(8×8) [9, 3]']}\n",
            "mine.yaml:3:49: the patch 9 of '(8×8) [9, 3]' is larger than its grid; write 8 or less, or dense",
        ),
        (
            "data: digits\nprojection: {use: high-pass, of: {use: conv-stack, covering: placed}}\n"
            "schedule: {use: pyramid, entries: ['(8×8) [15, 17]']}\n",
            "the patch 17 of '(8×8) [15, 17]' is larger than its grid; write 15 or less, or dense",
        ),
        ("# " + "x" * 262_143 + "\n", "mine.yaml:1:1: the file is larger than 256 KB"),
    ],
)
def test_a_mistake_is_told_with_its_place(text, complaint, complaints):
    lines = complaints(text)
    assert any(complaint in line for line in lines), lines


@pytest.mark.parametrize("text", ["extends: [[digits]]\n", "extends: no.yaml\nschedule: {use: constant}\n"])
def test_nothing_is_called_missing_where_extends_is_wrong(text, complaints):
    (line,) = complaints(text)
    assert line.startswith("mine.yaml:1:10: extends")


def test_a_recipe_that_is_a_named_pipe_is_refused(complaints, registry):
    """Opening one waits for a writer that may never come."""
    os.mkfifo("pipe.yaml")
    assert complaints("extends: pipe.yaml\n") == [
        "mine.yaml:1:10: extends: pipe.yaml is a named pipe, not a file"
    ]
    with pytest.raises(RecipeError, match=r"^pipe\.yaml:1:1: pipe\.yaml is a named pipe, not a file$"):
        load_recipe("pipe.yaml", registry=registry)


@pytest.mark.parametrize(
    "sections",
    [
        lambda n: {"outputs": {"snapshots": [1] * 20 * n}},
        lambda n: {"evaluate": {"metrics": [{"use": "sliced-wasserstein", "along": "uniform"}] * 5 * n}},
        lambda n: {
            "projection": functools.reduce(lambda of, _: {"use": "high-pass", "of": of}, range(n), "uniform")
        },
    ],
    ids=["a long list", "many plugins inside others", "a plugin deep inside others"],
)
def test_the_work_of_reading_and_showing_a_recipe_grows_with_its_length(sections, registry):
    def calls(size: int) -> int:
        count = itertools.count()
        sys.setprofile(lambda *_: next(count))
        try:
            with_origins(load_recipe({"extends": "digits", **sections(size)}, registry=registry))
        finally:
            sys.setprofile(None)
        return next(count)

    calls(1)  # what is done once
    first, second, third = (calls(size) for size in (5, 10, 20))
    assert third - second < 2.5 * (second - first)  # 2 if the work grows with the length, 4 with its square


def test_data_that_are_named_by_a_path_get_a_guess_at_it(registry, tmp_path):
    (tmp_path / "newfaces").mkdir()
    with pytest.raises(RecipeError, match=r"unknown dataset .*no file or folder has this name; .*'newfaces'"):
        choose(registry, "dataset", f"{tmp_path}/newface", or_path=True)
    with pytest.raises(RecipeError, match=r"unknown dataset 'x'[^;]*(; known: [^;]*)?$"):
        choose(registry, "dataset", "x", or_path=True)


def test_far_fewer_directions_than_dimensions_bring_a_warning_with_the_number_to_take(registry, caplog):
    for changes in (["schedule.directions=15"], [], ["schedule.directions=15", "projection=max-sliced"]):
        points = [
            "data={use: synthetic, count: 5, shape: [1, 8, 8]}",
            "condition=none",
            "schedule.directions=16",
        ]
        build_flow(load_recipe("digits", [*points, *changes], registry=registry), device="cpu")
    (line,) = caplog.messages
    assert line == (
        "stage constant: 15 directions are few for 64 dimensions: a step of any size removes at most 19 % of "
        "the squared error, and samples stay noisy; take about 128 directions (schedule.directions), or many "
        "steps of a smaller step size (schedule.step_size)"
    )


def test_yaml_1_1_truth_values_get_a_hint(complaints, registry):
    @attrs.frozen
    class Flagged(type(load_recipe("digits", registry=registry).schedule.part)):
        loud: bool = False

    registry.plugins.append(Plugin(Owner("schedule", "flagged", "test", "1"), Flagged))
    try:
        lines = complaints("data: digits\nschedule: {use: flagged, steps: 1, directions: 1, loud: yes}\n")
    finally:
        registry.plugins.pop()
    assert lines == ["mine.yaml:2:57: schedule.loud must be true or false, got the text 'yes' (write true)"]


def test_overrides_that_are_no_list_are_a_type_error(registry):
    with pytest.raises(TypeError, match="must be a list"):
        load_recipe("digits", "schedule.steps=5", registry=registry)


def test_a_section_with_a_default_plugin_needs_no_use_and_numbers_may_be_texts_or_floats(write, registry):
    text = MINIMAL + "projection: {reuse: all}\nname: 123\nparticles: {count: 1e3}\n"
    recipe = load_recipe(write(text), ["cdf.bins=64"], registry=registry)
    assert (recipe.projection.name, recipe.reuse) == ("uniform", "all")
    assert (recipe.cdf.name, recipe.cdf.part.bins) == ("histogram", 64)
    assert origin_of_every_value(recipe)["cdf.use"] == "default"
    assert (recipe.name, recipe.particles.count) == ("123", 1000)


def test_items_of_a_tuple_have_each_their_type(registry):
    reader = _RecipeReader(registry)
    node = parse("[1, x]", Location("r"), [])
    assert reader.value(node, kind_of(tuple[int, str]), "pair") == (1, "x")
    with pytest.raises(RecipeError, match=r"r:1:5: pair\.1 must be a whole number, got the text 'x'"):
        reader.value(node, kind_of(tuple[str, int]), "pair")


def test_a_circle_through_several_files_is_shown_and_a_link_in_a_circle_refused(write, registry, tmp_path):
    write("extends: b.yaml\n", "a.yaml")
    write("extends: mine.yaml\n", "b.yaml")
    with pytest.raises(RecipeError, match=r"b.yaml:1:10: .*circle: mine.yaml → a.yaml → b.yaml → mine.yaml"):
        load_recipe(write("extends: a.yaml\n"), registry=registry)
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    with pytest.raises(RecipeError, match=r"loop\.yaml"):
        load_recipe(tmp_path / "loop.yaml", registry=registry)


def test_a_file_that_is_not_text_is_refused(tmp_path, registry):
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"name: ok\ndescription: \xff\xfe\n")
    with pytest.raises(RecipeError, match=r"bad.yaml:2:1: the text is not valid UTF-8"):
        load_recipe(path, registry=registry)


def test_relative_paths_count_from_the_recipe_that_names_them(write, tmp_path, registry):
    write("data: {use: npz, path: points.npz}\n", "deep/base.yaml")
    recipe = load_recipe(
        write("extends: deep/base.yaml\nschedule: {use: constant, steps: 1, directions: 1}\n"),
        registry=registry,
    )
    assert recipe.data.part.path == tmp_path / "deep/points.npz"
    recipe = load_recipe("mine.yaml", ["data.path=here.npz"], registry=registry)
    assert recipe.data.part.path == tmp_path / "here.npz"


@pytest.mark.parametrize("name", sorted(builtin_recipes()))
def test_the_resolved_recipe_reads_back_as_the_same_recipe(name, recipes, write, registry):
    resolved = {**recipes[name].resolved(), "description": "a: 'b' \"c\" # \\ no"}
    assert from_yaml(to_yaml(resolved)) == resolved
    assert load_recipe(write(to_yaml(resolved)), registry=registry).resolved() == resolved


def test_plugins_as_deep_as_a_recipe_may_have_them_read_back(registry):
    def nested(depth: int) -> str:
        return "projection: " + "{use: high-pass, of: " * depth + "uniform" + "}" * depth

    recipe = load_recipe({"extends": "digits", **from_yaml(nested(37))}, registry=registry)
    assert load_recipe(from_yaml(to_yaml(recipe.resolved())), registry=registry).resolved() == recipe.resolved()
    with pytest.raises(RecipeError, match="nested deeper than 40 levels"):
        load_recipe({"extends": "digits", **from_yaml(nested(38))}, registry=registry)


def test_a_mapping_is_a_recipe_like_its_yaml(write, registry, tmp_path):
    text = "extends: deep/base.yaml\nseed: 1e0\nparticles: {count: 8, scale: 1.0e-05}\nname: 'no'\n"
    short = "schedule: {use: constant, steps: 1, directions: 1}\n"
    write(f"data: {{use: npz, path: points.npz}}\n{short}", "deep/base.yaml")
    recipe = load_recipe(from_yaml(text), ["schedule.steps=2"], registry=registry)
    assert recipe.resolved() == load_recipe(write(text), ["schedule.steps=2"], registry=registry).resolved()
    assert (recipe.name, recipe.path) == ("no", None)
    assert str(recipe.origins["particles.count"]) == "mapping:particles.count"
    data = {"use": "npz", "path": Path("x.npz")}
    recipe = load_recipe({"data": data, **from_yaml(short)}, registry=registry)
    assert (recipe.name, recipe.data.part.path) == ("recipe", tmp_path / "x.npz")


def test_mistakes_in_a_mapping_are_told_with_their_key_paths(registry):
    endless: list[object] = []
    endless.append(endless)
    faulty = {
        "data": "digit",
        "schedule": {"use": "constant", "steps": "many", "directions": float("inf")},
        "outputs": {"snapshots": [1, "x"], "log_every": object()},
        "extends": "nowhere",
        3: 4,
    }
    with pytest.raises(RecipeError) as error:
        load_recipe(faulty, registry=registry)
    assert str(error.value).splitlines() == [
        "mapping:outputs.log_every: a recipe has texts, numbers, lists and mappings, not values of type object",
        "mapping:3: a key must be a text",
        "mapping:extends: extends: there is no built-in recipe 'nowhere' (a path ends in .yaml)",
        f"mapping:3: unknown key '3'; known: {', '.join(sorted(KEYS))}",
        "mapping:outputs.snapshots.1: outputs.snapshots.1 must be a whole number, got the text 'x'",
        "mapping:data: unknown dataset 'digit'; did you mean 'digits'?",
        "mapping:schedule.steps: schedule.steps must be a whole number, got the text 'many'",
        "mapping:schedule.directions: schedule.directions must be a whole number, got the text 'inf'",
    ]
    with pytest.raises(RecipeError, match="nested deeper than 40 levels"):
        load_recipe({"data": endless}, registry=registry)


@functools.cache
def as_written() -> list[dict]:
    """The built-in recipes, read once."""
    return [from_yaml(source.path.read_text("utf-8")) for source in builtin_recipes().values()]


@hypothesis.given(data=st.data())
def test_no_mapping_gives_a_traceback(data, registry):
    """Of files and overrides, tests/fuzz shows the same."""
    mapping = changed(data.draw, data.draw(st.sampled_from(as_written())), as_written()[:3])
    hypothesis.assume(isinstance(mapping, dict))
    with contextlib.suppress(RecipeError):
        assert load_recipe(mapping, registry=registry).path is None


def test_every_value_has_an_origin(write, registry):
    write(MINIMAL, "base.yaml")
    recipe = load_recipe(write("extends: base.yaml\nseed: 3\n"), ["schedule.steps=6"], registry=registry)
    origins = origin_of_every_value(recipe)
    assert origins["seed"] == "mine.yaml:2:7"
    assert origins["data.use"] == "base.yaml:1:7"
    assert origins["schedule.steps"] == "command line:1:16"
    assert origins["schedule.directions"] == "base.yaml:2:49"
    assert origins["cdf.use"] == "default"
    assert origins["particles.scale"] == "default"
    text = with_origins(recipe)
    for line in text.splitlines():
        assert "#" in line or line.endswith(":") or line == "model: {}", line


def test_a_recipe_is_flattened_to_its_single_values():
    nested = {"a": {"b": None, "c": [1, "x y", True]}, "d": [{"e": 1e-05}, []], "f": {}}
    flat = {"a.b": "null", "a.c": "[1, x y, true]", "d.0.e": "1e-05", "d.1": "[]", "f": "{}"}
    assert flattened(nested) == flat
