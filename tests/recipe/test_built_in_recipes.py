"""Every built-in recipe is put together, one of each kind is run, and the pyramid does what it is there for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cswf_core.flow import stability
from cswf_core.interfaces import Key, Space, Stage
from cswf_core.recipe import Recipe, build_flow, builtin_recipes, load_recipe
from cswf_core.recipe.build import DIMENSIONS_PER_DIRECTION
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch
from tests.conftest import skip_without
from tests.marks import slow_if
from tests.recipe.flows import OBSERVING, SHAPES, flows_of

ALL = sorted(builtin_recipes())
PUBLISHED = ("fashion-mnist", "mnist", "cifar10")
KEYS = ("data", "condition", "projection", "cdf", "schedule")

EXPERIMENTS = [
    f"{data}-{kind}"
    for data in SHAPES
    for kind in ("unconditional", "class", "inpainting")
    if (data, kind) != ("celeba", "class")
]
"""The paper's."""

QUICK = {"mnist-inpainting", "fid-celeba", "online-digits", "digits", "toy-cswf"}
"""Those that are run always, as others show nearly the same; `make test-all` runs these too."""

LAUNCHED = (
    *("mnist-unconditional-paper", "mnist-class-released", "mnist-inpainting-released"),
    *("cifar10-unconditional-released", "fashion-mnist-class", "mnist-inpainting", "mnist-super-resolution"),
    *("cifar10-colorize", "celeba-inpainting", "fid-mnist", "fid-celeba", "ablation-amplifier"),
    *("online-class", "online-digits"),
)
"""A recipe of each kind; those on small data are run by a test of their own."""

SMALL = [name for name in ALL if name.startswith(("toy-", "digits", "swf-"))]

FACES = ("celeba-inpainting", "fid-celeba")
"""Those with so many stages at 64×64 that a few of these are run."""


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


@pytest.mark.parametrize("name", ALL)
def test_every_recipe_and_its_variants_make_a_flow(name, recipes):
    assert recipes[name].name == name
    assert recipes[name].description
    each = (recipes[name], *recipes[name].variants.values())
    for recipe, flow in zip(each, flows_of(recipes[name]), strict=True):
        assert (flow.count, len(flow.particles)) == (10, 10 + min(3, recipe.particles.offline))
        assert flow.data.space.shape == SHAPES.get(recipe.data.name, flow.data.space.shape)
        stages = recipe.schedule.part.stages(flow.data.space, recipe.projection.part)
        assert len(flow.stages) == len(stages) * (1 + len(recipe.arrivals))
        assert all(stage.steps > 0 and stage.directions > 0 for stage in flow.stages)
        few = [
            s.name
            for s in flow.stages
            if s.dimension(flow.data.space) > DIMENSIONS_PER_DIRECTION * s.directions
        ]
        assert not few  # such a flow would begin with a warning


def test_every_plugin_of_the_recipes_is_in_one_that_is_run(recipes):
    def plugins(chosen: list[Recipe]) -> set[tuple[str, str]]:
        return {(key, getattr(recipe, key).name) for recipe in chosen for key in KEYS}

    run = [recipe for name, recipe in recipes.items() if name in LAUNCHED or on_small_data(recipe)]
    left_out = plugins(list(recipes.values())) - plugins(run)
    assert not left_out


def shortened(recipe: Recipe) -> list[str]:
    """Overrides that make a recipe a test: few steps, particles, images and directions."""
    scale = 0.001 if recipe.name.endswith("-released") else 0.003  # there, every step draws networks
    overrides = [f"schedule.scale={scale}", "particles.count=60", "outputs.log_every=1", "outputs.frames=0"]
    if recipe.name in FACES:  # all of their stages are made into a flow, and some of them are run
        overrides += ['schedule.entries=["(1×1) [1]", "(16×16) [5]", "(64×64) [3] steps=100"]']
    if recipe.particles.offline:
        overrides += ["particles.offline=7"]
    if getattr(recipe.condition.part, "carried", False):
        overrides += ["condition.held_out=2"]
    overrides += ["outputs.checkpoint_every=never"]  # tests/runs and tests/cli have these
    if recipe.data.name in SHAPES:
        overrides += ["schedule.directions=50"]
    if recipe.data.name in PUBLISHED:
        overrides += ["data.count=100"]
    if recipe.data.name == "cifar10" and not recipe.arrivals:  # 1,000 held-out images instead of 10,000
        overrides += ["data.classes=[ship]"]
    # A CPU sees eight images a second; tests/evaluation has FID.
    if any(metric.name == "fid" for metric in recipe.metrics):
        overrides += ["evaluate.metrics=[{use: sliced-wasserstein, directions: 50}]"]
    else:
        overrides += [f"evaluate.metrics.{i}.directions=50" for i in range(len(recipe.metrics))]
    if recipe.arrivals:
        overrides += ["online.sets=2", "online.steps=1"]
    if recipe.arrivals and recipe.data.name in PUBLISHED:
        some = [{**recipe.arrivals[i].plain(), "count": 15} for i in (0, -1)]  # of the many rounds, two
        overrides += [f"online.arrivals={json.dumps(some)}"]
    return overrides


@pytest.mark.parametrize("name", slow_if({*LAUNCHED} - QUICK, LAUNCHED))
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
    carried = tmp_path / "samples-offline.npz"
    assert carried.exists() == (recipe.particles.offline > 0)
    if carried.exists():
        assert len(np.load(carried)["images"]) == recipe.particles.offline


@pytest.mark.parametrize("name", slow_if({*SMALL} - QUICK, SMALL))
def test_recipes_on_small_data_come_nearer_to_them(name, tmp_path, registry):
    overrides = ["particles.count=100", "schedule.steps=40", "outputs.log_every=1", "outputs.frames=0"]
    recipe = load_recipe(name, [*overrides, "evaluate.metrics=[]"], registry=registry)
    assert on_small_data(recipe)
    record = launch(recipe, RunFolder(tmp_path), device="cpu")
    assert (record["status"], record["steps_done"], record["particles"]) == ("done", 40, 100)
    assert len(rows(tmp_path)) == 40
    assert rows(tmp_path)[-1]["sliced_distance"] < rows(tmp_path)[0]["sliced_distance"] / 2
    if name.startswith("toy-"):
        assert (tmp_path / "flow.png").stat().st_size > 5000
        assert np.load(tmp_path / "samples.npz")["points"].shape == (100, 2)


def test_all_experiments_of_the_paper_have_their_recipes():
    assert len(EXPERIMENTS) == 11
    for name in EXPERIMENTS:
        assert {name, f"{name}-paper", f"{name}-released"} <= set(ALL)


PARTICLES = {"mnist": 250_000, "fashion-mnist": 250_000, "cifar10": 700_000, "celeba": 450_000}
"""M of the paper and of the released configurations."""


def stages_of(recipe: Recipe) -> list[Stage]:
    """The stages of a recipe's pyramid, on its own images."""
    return list(recipe.schedule.part.stages(Space(SHAPES[recipe.data.name]), recipe.projection.part))


def taking_part(recipe: Recipe) -> int:
    """The particles that F_p is made of: all but those that only complete held-out images."""
    condition = recipe.condition.part
    carried = condition.held_out * condition.completions if recipe.condition.name == "mask" else 0
    assert not carried or condition.carried
    return recipe.particles.count - carried


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_paper_s_recipes_have_its_numbers(name, recipes):
    recipe = recipes[f"{name}-paper"]
    stages, data = stages_of(recipe), recipe.data
    steps = {"cifar10": 19_520, "celeba": 14_650}.get(data.name, 6_820)
    assert sum(stage.steps for stage in stages) == steps
    assert {stage.directions for stage in stages} == {10_000}
    assert taking_part(recipe) == PARTICLES[data.name]
    assert (recipe.particles.scale, recipe.particles.offline, recipe.particles.clip) == (1, 0, None)
    assert recipe.projection.name == "locally-connected"
    assert data.part.dequantise == "step"
    assert data.part.flips == (data.name == "cifar10")
    amplifier = {"class": 10, "inpainting": 1}.get(name.rpartition("-")[2])
    assert amplifier is None or recipe.condition.part.amplifier == amplifier
    assert data.name not in ("cifar10", "celeba") or "fid" in [metric.name for metric in recipe.metrics]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_released_recipes_have_the_numbers_of_the_released_configurations(name, recipes):
    recipe = recipes[f"{name}-released"]
    stages, data, particles = stages_of(recipe), recipe.data, recipe.particles
    steps, count = {"cifar10": (23_020, 45), "celeba": (16_750, 52)}.get(data.name, (9_420, 48))
    assert (sum(stage.steps for stage in stages), len(stages)) == (steps, count)
    grids = [stage.upsampling.space if stage.upsampling else Space(SHAPES[data.name]) for stage in stages]
    assert [stage.step_size for stage in stages] == [min(grid.dimension, 10_000) for grid in grids]
    assert {stage.directions for stage in stages} == {10_000}
    assert taking_part(recipe) == PARTICLES[data.name]
    assert particles.offline + particles.count - taking_part(recipe) == 4_000
    assert (particles.scale, particles.precision) == (0.1, "float32")
    assert particles.clip == (1 if data.name == "celeba" else None)
    filters = recipe.projection.part
    assert (recipe.projection.name, filters.width, filters.units) == ("conv-stack", 20, 10)
    assert (filters.covering, recipe.schedule.part.upsample) == ("placed", "lanczos5")
    assert (data.part.dequantise, data.part.flips) == ("step", data.name == "cifar10")
    if data.name in ("cifar10", "celeba"):
        assert (recipe.cdf.name, recipe.cdf.part.rule, recipe.cdf.part.knots) == ("spline", "released", 1001)
    else:
        assert (recipe.cdf.name, recipe.cdf.part.rank) == ("sorted", "released")


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if not name.endswith("unconditional")])
def test_the_released_recipes_have_the_conditions_of_the_released_code(name, recipes):
    condition = recipes[f"{name}-released"].condition.part
    if name.endswith("class"):
        assert (condition.amplifier, condition.joint, condition.theta) == (10, "full", "laplace")
        assert condition.dequantise
        assert condition.labels == "balanced"
        # CIFAR-10 has equally many images of each class.
        assert "cifar10" in name or (set(condition.prior), condition.resample) == ({1}, False)
    else:
        hidden = "bottom" if "mnist" in name else "right"
        assert (condition.amplifier, condition.hidden, condition.share) == (1, hidden, 0.5)
        assert (condition.held_out, condition.completions, condition.carried) == (200, 20, True)


def entries(recipe: Recipe) -> list[tuple[int, ...]]:
    """The table of a recipe: each grid, then its patches, whose dilation follows a dilated one after a dot."""
    table: dict[int, list[object]] = {}
    for entry in recipe.schedule.part.entries:
        assert entry.height == entry.width
        patches = (
            entry.patches if entry.dilation == 1 else [f"{size}.{entry.dilation}" for size in entry.patches]
        )
        table.setdefault(entry.height, []).extend(patches)
    return [(k, *sizes) for k, sizes in table.items()]


DOWN = (15, 13, 11, 9, 7, 5, 3)


def test_the_tables_of_the_recipes_are_the_paper_s(recipes):
    """Resolutions and patch sizes, as they stand in the appendix; `dense` stages are the released code's."""
    first = [(k, k) for k in range(1, 7)]
    middle = [(7, 7), (8, 8, 7, 5, 3), (12, 12, 11, 9, 7, 5, 3)]
    tables = {
        "mnist": [*first, (7, 7, 5, 3), (11, 11, 9, 7, 5, 3), (14, 14, *DOWN[1:]), (21, *DOWN), (28, *DOWN)],
        "cifar10": [*first, *middle, (16, *DOWN), (24, *DOWN), (32, *DOWN)],
        "celeba": [*first, *middle, (16, *DOWN), (24, *DOWN), (32, *DOWN), (64, *DOWN)],
    }
    for data, table in tables.items():
        assert entries(recipes[f"{data}-unconditional-paper"]) == table
        single = (1,) if data == "mnist" else ()  # and pixels by themselves in the end
        assert entries(recipes[f"{data}-unconditional"]) == [*table[:-1], (*table[-1], *single)]


def test_the_tables_of_the_released_recipes_are_the_released_code_s(recipes):
    """Uniform directions on small grids, and stages with dilation 2 before those without."""
    dense = [(k, "dense") for k in range(1, 8)]
    dilated = ("7.2", "5.2", "3.2")
    middle = [(8, "5.2", "3.2", "dense", 7, 5, 3), (12, *dilated, *DOWN[2:]), (16, *dilated, *DOWN)]
    tables = {
        "mnist": [*dense[:6], (7, "5.2", "3.2", "dense", 7, 5, 3), (11, *dilated, *DOWN[2:]),
                  (14, *dilated, *DOWN), (21, "9.2", *dilated, *DOWN), (28, *DOWN)],
        "cifar10": [*dense, *middle, (24, *DOWN), (32, *DOWN)],
        "celeba": [*dense, *middle, (24, *DOWN), (32, *DOWN), (64, *DOWN)],
    }  # fmt: skip
    for data, table in tables.items():
        assert entries(recipes[f"{data}-unconditional-released"]) == table


def test_the_ablations_vary_what_they_say(recipes):
    def values(name: str, get) -> list:
        return [get(variant) for variant in recipes[name].variants.values()]

    assert values("ablation-directions", lambda r: r.schedule.part.directions) == [1000, 5000, 10000]
    assert values("ablation-particles", lambda r: r.particles.count) == [100_000, 300_000, 700_000]
    assert values("ablation-amplifier", lambda r: r.condition.part.amplifier) == [0, 2, 5, 10]
    assert values("ablation-local-pyramid", lambda r: (r.projection.name, r.schedule.name)) == [
        ("uniform", "constant"), ("locally-connected", "pyramid"), ("locally-connected", "pyramid")
    ]  # fmt: skip
    steps = values(
        "ablation-local-pyramid",
        lambda r: sum(s.steps for s in r.schedule.part.stages(Space((1, 28, 28)), r.projection.part)),
    )
    assert max(steps) < 1.1 * min(steps)
    stages = values(
        "ablation-local-pyramid-cifar10",
        lambda r: r.schedule.part.stages(Space((3, 32, 32)), r.projection.part),
    )
    assert [sum(stage.steps for stage in each) for each in stages] == [19_520, 19_516, 19_520, 19_520]
    assert [sum(stage.upsampling is None for stage in each) for each in stages] == [7, 7, 1, 1]
    assert [len(each) for each in stages] == [38, 7, 12, 1]


@pytest.mark.slow
def test_a_short_pyramid_comes_nearer_to_held_out_images_than_the_baseline(tmp_path, registry, monkeypatch):
    """CIFAR-10's ships, 60 particles, 60 directions at each of 38 steps; the distance is along uniform ones."""
    skip_without("cifar10")
    # Uniform directions have λ = 1/d; an estimate of that in 3,072 dimensions takes ten seconds on a CPU.
    monkeypatch.setattr(stability, "FEWEST_STEPS", 100)
    shared = ["particles.count=60", "schedule.directions=60", "evaluate.against=[test]", "outputs.frames=0"]
    shared += ["outputs.checkpoint_every=never"]
    shared += ["evaluate.metrics=[{use: sliced-wasserstein, directions: 80}]"]
    sizes = ["data.count=100", "data.classes=[ship]", "schedule.scale=0.02"]
    ours = load_recipe("cifar10-unconditional", [*shared, *sizes], registry=registry)
    record = launch(ours, RunFolder(tmp_path / "ours"), device="cpu")
    distance = record["metrics"]["sliced_wasserstein_test"]
    # η = d diverges with so few directions; 80 does not.
    swf = ["data={use: cifar10, count: 100, classes: [ship], dequantise: once}", "schedule.step_size=80"]
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
