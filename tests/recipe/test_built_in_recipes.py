"""Every built-in recipe runs from end to end, and the pyramid does what it is there for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cswf_core.interfaces import Key, Space
from cswf_core.recipe import builtin_recipes, load_recipe
from cswf_core.runs.folder import RunDirectory
from cswf_core.session.launch import launch
from tests.conftest import skip_without

ALL = sorted(builtin_recipes())
PUBLISHED = ("fashion-mnist", "mnist", "cifar10")
SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32), "celeba": (3, 64, 64)}


@pytest.fixture(scope="session")
def faces(tmp_path_factory) -> Path:
    """A folder of JPEGs of CelebA's size: soft blobs of random colours, 110 of them."""
    root = tmp_path_factory.mktemp("faces")
    (root / "celeba/img_align_celeba").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(1, 111):
        coarse = generator.integers(0, 256, (5, 4, 3), np.uint8)
        picture = Image.fromarray(coarse).resize((178, 218), Image.Resampling.BICUBIC)
        picture.save(root / f"celeba/img_align_celeba/{number:06d}.jpg")
    return root


def kinds(name: str) -> set[tuple[object, ...]]:
    """What a recipe puts together, two by two."""
    recipe = load_recipe(name)
    data, condition, projection = recipe.data.name, recipe.condition.name, recipe.projection.name
    online = bool(recipe.arrivals)
    return {(data, condition), (data, projection), (condition, projection), (data, online), (condition, online)}


def one_of_each_kind() -> list[object]:
    """All recipes; those that put nothing together that another has not are slow."""
    seen: set[tuple[object, ...]] = set()
    chosen = []
    for name in ALL:
        chosen.append(pytest.param(name, marks=[] if kinds(name) - seen else pytest.mark.slow))
        seen |= kinds(name)
    return chosen


@pytest.mark.parametrize("name", ALL)
def test_every_recipe_is_valid_and_so_are_its_stages(name, registry):
    recipe = load_recipe(name, registry=registry)
    space = Space(SHAPES.get(recipe.data.name, (1, 8, 8)))
    assert all(stage.steps > 0 for stage in recipe.schedule.part.stages(space, recipe.projection.part))


@pytest.mark.parametrize("name", one_of_each_kind())
def test_every_recipe_runs_to_its_end(name, tmp_path, registry, request, monkeypatch):
    """With a step or two a stage, and few images and directions."""
    plain = load_recipe(name, registry=registry)
    overrides = ["schedule.scale=0.001", "particles.count=60", "outputs.log_every=1", "outputs.frames=3"]
    overrides += ["outputs.checkpoint_every=never"]  # tests/runs and tests/cli have these
    data = plain.data.name
    if data in PUBLISHED:
        skip_without(data)
        overrides += ["data.count=80", "schedule.directions=50"]
    if data == "celeba":
        root = request.getfixturevalue("faces")
        monkeypatch.setenv("CSWF_DATA", str(root))
        overrides += ["schedule.directions=50"]
    if name.startswith("fid-"):  # on a CPU the network sees eight images a second; tests/evaluation has it
        overrides += ["evaluate.metrics=[{use: sliced-wasserstein, directions: 50}]"]
    else:
        overrides += [f"evaluate.metrics.{i}.directions=50" for i in range(len(plain.metrics))]
    if plain.projection.name == "high-pass":  # finding the longest step for it takes seconds at each stage
        overrides += ["projection={use: conv-stack, power: 2}"]
    if plain.arrivals:
        overrides += ["online.sets=2", "online.steps=1"]
    if plain.arrivals and data in PUBLISHED:
        skip_without("fashion-mnist")
        some = [{**plain.arrivals[i].plain(), "count": 15} for i in (0, -1)]  # of the many rounds, two
        overrides += [f"online.arrivals={json.dumps(some)}"]
    recipe = load_recipe(name, overrides, registry=registry)
    record = launch(recipe, RunDirectory(tmp_path / "run"), device="cpu")
    assert record["status"] == "done"
    count = record["particles"]
    assert count == 60 if not plain.arrivals else count > 60
    assert record["steps_done"] == record["steps_planned"]
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert len(rows) == record["steps_done"]
    assert all(np.isfinite(row["sliced_distance"]) for row in rows)
    if data in SHAPES:
        assert tuple(record["data"]["shape"]) == SHAPES[data]
        assert np.load(tmp_path / "run/samples.npz")["images"].shape == (count, *SHAPES[data])
    assert (tmp_path / "run/completions.png").exists() == (recipe.condition.name in OBSERVING)


OBSERVING = ("mask", "super-resolution", "colorize")


def on_small_data(name: str) -> bool:
    recipe = load_recipe(name)
    return recipe.data.name not in (*PUBLISHED, "celeba") and not recipe.arrivals


@pytest.mark.parametrize("name", list(filter(on_small_data, ALL)))
def test_recipes_on_small_data_come_nearer_to_them(name, tmp_path, registry):
    recipe = load_recipe(
        name, ["particles.count=400", "schedule.steps=60", "outputs.log_every=1"], registry=registry
    )
    launch(recipe, RunDirectory(tmp_path / "run"), device="cpu")
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 60
    assert rows[-1]["sliced_distance"] < rows[0]["sliced_distance"] / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist-class", "fashion-mnist-inpainting"])
def test_a_recipe_runs_shortened_on_all_of_its_data(name, tmp_path, registry):
    skip_without(load_recipe(name, registry=registry).data.name)
    recipe = load_recipe(name, ["schedule.scale=0.01", "particles.count=200"], registry=registry)
    assert launch(recipe, RunDirectory(tmp_path / "run"), device="cpu")["status"] == "done"


def test_all_experiments_of_the_paper_have_their_recipes():
    for data in ("mnist", "fashion-mnist", "cifar10", "celeba"):
        for kind in ("unconditional", "class", "inpainting"):
            if (data, kind) != ("celeba", "class"):
                assert {f"{data}-{kind}", f"{data}-{kind}-paper"} <= set(ALL)


@pytest.mark.parametrize(
    ("name", "particles", "steps", "amplifier"),
    [
        ("mnist-unconditional-paper", 250_000, 6_820, None),
        ("fashion-mnist-class-paper", 250_000, 6_820, 10),
        ("cifar10-unconditional-paper", 700_000, 19_520, None),
        ("cifar10-inpainting-paper", 700_000, 19_520, 1),
        ("celeba-unconditional-paper", 450_000, 16_740, None),
    ],
)
def test_the_paper_s_recipes_have_its_numbers(name, particles, steps, amplifier, registry):
    recipe = load_recipe(name, registry=registry)
    shape = SHAPES[recipe.data.name]
    stages = recipe.schedule.part.stages(Space(shape), recipe.projection.part)
    assert recipe.particles.count == particles
    assert sum(stage.steps for stage in stages) == steps
    assert {stage.directions for stage in stages} == {10_000}
    assert recipe.projection.name == "locally-connected"
    assert recipe.data.part.dequantise == "step"
    if amplifier is not None:
        assert recipe.condition.part.amplifier == amplifier


def test_the_tables_of_the_recipes_are_the_paper_s(registry):
    """Resolutions and patch sizes, as they stand in the appendix."""
    first = [(k, k) for k in range(1, 7)]
    down = [(15, 13, 11, 9, 7, 5, 3)]
    middle = [(8, 8, 7, 5, 3), (12, 12, 11, 9, 7, 5, 3)]
    tables = {
        "mnist": [*first, (7, 7, 5, 3), (11, 11, 9, 7, 5, 3), (14, 14, 13, 11, 9, 7, 5, 3),
                  (21, *down[0]), (28, *down[0])],
        "cifar10": [*first, (7, 7), *middle, (16, *down[0]), (24, *down[0]), (32, *down[0])],
        "celeba": [*first, (7, 7), *middle, (16, *down[0]), (24, *down[0]), (32, *down[0]), (64, *down[0])],
    }  # fmt: skip
    for data, table in tables.items():
        for ending in ("", "-paper"):
            entries = load_recipe(f"{data}-unconditional{ending}", registry=registry).schedule.part.entries
            found: dict[int, list[int]] = {}
            for entry in entries:
                assert entry.height == entry.width
                found.setdefault(entry.height, []).extend(entry.patches)
            assert [(k, *patches) for k, patches in found.items()] == table


def test_the_ablations_vary_what_they_say(registry):
    def values(name: str, get) -> list:
        return [get(variant) for variant in load_recipe(name, registry=registry).variants.values()]

    assert values("ablation-directions", lambda r: r.schedule.part.directions) == [1000, 5000, 10000]
    assert values("ablation-particles", lambda r: r.particles.count) == [10_000, 30_000, 100_000]
    assert values("ablation-amplifier", lambda r: r.condition.part.amplifier) == [0, 2, 5, 10]
    assert values("ablation-local-pyramid", lambda r: (r.projection.name, r.schedule.name)) == [
        ("uniform", "constant"), ("locally-connected", "pyramid"), ("locally-connected", "pyramid")
    ]  # fmt: skip
    steps = values(
        "ablation-local-pyramid",
        lambda r: sum(s.steps for s in r.schedule.part.stages(Space((1, 28, 28)), r.projection.part)),
    )
    assert max(steps) < 1.1 * min(steps)


def test_a_short_pyramid_comes_nearer_to_held_out_images_than_the_baseline(tmp_path, registry):
    """CIFAR-10, 200 particles, 300 directions at each of some 60 steps; the distance is along uniform ones."""
    skip_without("cifar10")
    shared = ["particles.count=200", "schedule.directions=300", "evaluate.against=[test]", "outputs.frames=0"]
    shared += ["outputs.checkpoint_every=never", "evaluate.metrics.0.directions=200"]
    ours = load_recipe(
        "cifar10-unconditional", [*shared, "data.count=500", "schedule.scale=0.02"], registry=registry
    )
    record = launch(ours, RunDirectory(tmp_path / "ours"), device="cpu")
    distance = record["metrics"]["sliced_wasserstein_test"]
    # η = d diverges with so few directions; 240 does not.
    swf = ["data={use: cifar10, count: 500, dequantise: once}", "schedule.step_size=240"]
    steps = f"schedule.steps={record['steps_done']}"
    for reuse in ("all", "1"):  # as published, and with fresh directions at every step
        baseline = load_recipe(
            "swf-baseline", [*swf, *shared, steps, f"projection.reuse={reuse}"], registry=registry
        )
        scores = launch(baseline, RunDirectory(tmp_path / reuse), device="cpu")["metrics"]
        assert distance < 0.9 * scores["sliced_wasserstein_test"]


@pytest.mark.slow
def test_mnist_by_class_on_a_cpu_is_recognised(registry):
    """The README's picture: a nearest-neighbour classifier finds the class that was asked for."""
    from sklearn.neighbors import KNeighborsClassifier

    from cswf_core.recipe import build_flow

    skip_without("mnist")
    recipe = load_recipe("mnist-class-cpu", registry=registry)
    flow = build_flow(recipe, device="cpu")
    samples = flow.run()
    real = load_recipe("mnist-class", registry=registry).data.part.load(Key(1, "data").open())
    classifier = KNeighborsClassifier(5).fit(real.x.T.numpy(), real.conditions.labels.numpy())
    found = classifier.predict(samples.x.T.numpy())
    assert (found == samples.conditions.labels.numpy()).mean() >= 0.85
