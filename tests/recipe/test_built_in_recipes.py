"""Every built-in recipe is put together, one of each kind is run, and the pyramid does what it is there for."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import numpy as np
import pytest
from PIL import Image

from cswf_core.interfaces import Key, Space
from cswf_core.recipe import Recipe, build_flow, builtin_recipes, choose, load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch
from tests.conftest import skip_without

ALL = sorted(builtin_recipes())
SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32), "celeba": (3, 64, 64)}
PUBLISHED = ("fashion-mnist", "mnist", "cifar10")
KEYS = ("data", "condition", "projection", "cdf", "schedule")
OBSERVING = ("mask", "super-resolution", "colorize")

LAUNCHED = (
    "mnist-unconditional-paper",
    "fashion-mnist-class",
    "mnist-inpainting",
    "mnist-super-resolution",
    "cifar10-colorize",
    "celeba-inpainting",
    "fid-mnist",
    "ablation-amplifier",
    "online-class",
    "online-digits",
)
"""A recipe of each kind; those on small data are run by a test of their own."""


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


def rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def on_small_data(recipe: Recipe) -> bool:
    return recipe.data.name not in SHAPES and not recipe.arrivals


def on_random_data(recipe: Recipe) -> Recipe:
    """The recipe with ten particles, and random images instead of those that may not be on this machine."""
    if recipe.data.name in SHAPES:
        images = {"use": "synthetic", "count": 20, "shape": SHAPES[recipe.data.name], "classes": 10}
        data = choose(recipe.registry, "dataset", json.dumps(images))
        recipe = attrs.evolve(recipe, data=data, arrivals=(data,) * len(recipe.arrivals))
    if recipe.condition.name in OBSERVING:  # random images are not held out
        condition = attrs.evolve(recipe.condition, part=attrs.evolve(recipe.condition.part, held_out=0))
        recipe = attrs.evolve(recipe, condition=condition)
    return attrs.evolve(recipe, particles=attrs.evolve(recipe.particles, count=10))


@pytest.mark.parametrize("name", ALL)
def test_every_recipe_and_its_variants_make_a_flow(name, recipes):
    assert recipes[name].name == name
    assert recipes[name].description
    for recipe in (recipes[name], *recipes[name].variants.values()):
        flow = build_flow(on_random_data(recipe), device="cpu")
        assert len(flow.particles) == 10
        assert flow.data.space.shape == SHAPES.get(recipe.data.name, flow.data.space.shape)
        stages = recipe.schedule.part.stages(flow.data.space, recipe.projection.part)
        assert len(flow.stages) == len(stages) * (1 + len(recipe.arrivals))
        assert all(stage.steps > 0 and stage.directions > 0 for stage in flow.stages)


def test_every_plugin_of_the_recipes_is_in_one_that_is_run(recipes):
    def plugins(chosen: list[Recipe]) -> set[tuple[str, str]]:
        return {(key, getattr(recipe, key).name) for recipe in chosen for key in KEYS}

    run = [recipe for name, recipe in recipes.items() if name in LAUNCHED or on_small_data(recipe)]
    left_out = plugins(list(recipes.values())) - plugins(run)
    # Its longest step takes seconds to find; tests/plugins has it.
    assert left_out == {("projection", "high-pass")}


def shortened(recipe: Recipe) -> list[str]:
    """Overrides that make a recipe a test: `schedule.scale=0.01`, with few particles, images and directions."""
    overrides = ["schedule.scale=0.01", "particles.count=60", "outputs.log_every=1", "outputs.frames=3"]
    overrides += ["outputs.checkpoint_every=never"]  # tests/runs and tests/cli have these
    if recipe.data.name in SHAPES:
        overrides += ["schedule.directions=50"]
    if recipe.data.name in PUBLISHED:
        overrides += ["data.count=100"]
    if recipe.name.startswith("fid-"):  # a CPU sees eight images a second; tests/evaluation has it
        overrides += ["evaluate.metrics=[{use: sliced-wasserstein, directions: 50}]"]
    else:
        overrides += [f"evaluate.metrics.{i}.directions=50" for i in range(len(recipe.metrics))]
    if recipe.arrivals:
        overrides += ["online.sets=2", "online.steps=1"]
    if recipe.arrivals and recipe.data.name in PUBLISHED:
        some = [{**recipe.arrivals[i].plain(), "count": 15} for i in (0, -1)]  # of the many rounds, two
        overrides += [f"online.arrivals={json.dumps(some)}"]
    return overrides


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_recipe_of_each_kind_runs_to_its_end(name, recipes, tmp_path, registry, request, monkeypatch):
    needed = {choice.name for choice in (recipes[name].data, *recipes[name].arrivals)}
    for data in needed & set(PUBLISHED):
        skip_without(data)
    if "celeba" in needed:
        monkeypatch.setenv("CSWF_DATA", str(request.getfixturevalue("faces")))
    recipe = load_recipe(name, shortened(recipes[name]), registry=registry)
    record = launch(recipe, RunFolder(tmp_path), device="cpu")
    assert record["status"] == "done"
    count = record["particles"]
    assert count == 60 if not recipe.arrivals else count > 60
    assert record["steps_done"] == record["steps_planned"] == len(rows(tmp_path))
    assert all(np.isfinite(row["sliced_distance"]) for row in rows(tmp_path))
    if recipe.data.name in SHAPES:
        assert tuple(record["data"]["shape"]) == SHAPES[recipe.data.name]
        assert np.load(tmp_path / "samples.npz")["images"].shape == (count, *SHAPES[recipe.data.name])
    assert (tmp_path / "completions.png").exists() == (recipe.condition.name in OBSERVING)


@pytest.mark.parametrize("name", [name for name in ALL if name.startswith(("toy-", "digits", "swf-"))])
def test_recipes_on_small_data_come_nearer_to_them(name, tmp_path, registry):
    overrides = ["particles.count=400", "schedule.steps=60", "outputs.log_every=1", "outputs.frames=0"]
    recipe = load_recipe(name, [*overrides, "evaluate.metrics=[]"], registry=registry)
    assert on_small_data(recipe)
    record = launch(recipe, RunFolder(tmp_path), device="cpu")
    assert (record["status"], record["steps_done"], record["particles"]) == ("done", 60, 400)
    assert len(rows(tmp_path)) == 60
    assert rows(tmp_path)[-1]["sliced_distance"] < rows(tmp_path)[0]["sliced_distance"] / 2
    if name.startswith("toy-"):
        assert (tmp_path / "flow.png").stat().st_size > 5000
        assert np.load(tmp_path / "samples.npz")["points"].shape == (400, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist-class", "fashion-mnist-inpainting"])
def test_a_recipe_runs_shortened_on_all_of_its_data(name, tmp_path, registry):
    skip_without(load_recipe(name, registry=registry).data.name)
    recipe = load_recipe(name, ["schedule.scale=0.01", "particles.count=200"], registry=registry)
    assert launch(recipe, RunFolder(tmp_path / "run"), device="cpu")["status"] == "done"


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
def test_the_paper_s_recipes_have_its_numbers(name, particles, steps, amplifier, recipes):
    recipe = recipes[name]
    shape = SHAPES[recipe.data.name]
    stages = recipe.schedule.part.stages(Space(shape), recipe.projection.part)
    assert recipe.particles.count == particles
    assert sum(stage.steps for stage in stages) == steps
    assert {stage.directions for stage in stages} == {10_000}
    assert recipe.projection.name == "locally-connected"
    assert recipe.data.part.dequantise == "step"
    if amplifier is not None:
        assert recipe.condition.part.amplifier == amplifier


def test_the_tables_of_the_recipes_are_the_paper_s(recipes):
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
            patches: dict[int, list[int]] = {}
            for entry in recipes[f"{data}-unconditional{ending}"].schedule.part.entries:
                assert entry.height == entry.width
                patches.setdefault(entry.height, []).extend(entry.patches)
            assert [(k, *sizes) for k, sizes in patches.items()] == table


def test_the_ablations_vary_what_they_say(recipes):
    def values(name: str, get) -> list:
        return [get(variant) for variant in recipes[name].variants.values()]

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
    """CIFAR-10, 150 particles, 100 directions at each of 38 steps; the distance is along uniform ones."""
    skip_without("cifar10")
    shared = ["particles.count=150", "schedule.directions=100", "evaluate.against=[test]", "outputs.frames=0"]
    shared += ["outputs.checkpoint_every=never", "evaluate.metrics.0.directions=200"]
    sizes = ["data.count=300", "schedule.scale=0.02"]
    ours = load_recipe("cifar10-unconditional", [*shared, *sizes], registry=registry)
    record = launch(ours, RunFolder(tmp_path / "ours"), device="cpu")
    distance = record["metrics"]["sliced_wasserstein_test"]
    # η = d diverges with so few directions; 80 does not.
    swf = ["data={use: cifar10, count: 300, dequantise: once}", "schedule.step_size=80"]
    steps = f"schedule.steps={record['steps_done']}"
    for reuse in ("all", "1"):  # as published, and with fresh directions at every step
        overrides = [*swf, *shared, steps, f"projection.reuse={reuse}"]
        baseline = load_recipe("swf-baseline", overrides, registry=registry)
        scores = launch(baseline, RunFolder(tmp_path / reuse), device="cpu")["metrics"]
        assert distance < 0.9 * scores["sliced_wasserstein_test"]


@pytest.mark.slow
def test_mnist_by_class_on_a_cpu_is_recognised(registry):
    """The README's picture: a nearest-neighbour classifier finds the class that was asked for."""
    from sklearn.neighbors import KNeighborsClassifier

    skip_without("mnist")
    recipe = load_recipe("mnist-class-cpu", registry=registry)
    flow = build_flow(recipe, device="cpu")
    samples = flow.run()
    real = load_recipe("mnist-class", registry=registry).data.part.load(Key(1, "data").open())
    classifier = KNeighborsClassifier(5).fit(real.x.T.numpy(), real.conditions.labels.numpy())
    predicted = classifier.predict(samples.x.T.numpy())
    assert (predicted == samples.conditions.labels.numpy()).mean() >= 0.85
