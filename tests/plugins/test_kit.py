"""The kit passes every built-in plugin, and catches each fault by the check that should."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from PIL import Image

from cswf_core.errors import DataError, PluginError
from cswf_core.interfaces import DatasetSource, Key, Space
from cswf_core.packed import LoadedImages, pack
from cswf_core.plugins import KINDS, Registry
from cswf_core.plugins.registry import LOAD_ONLY
from cswf_core.recipe import choose
from cswf_core.testing import (
    KITS,
    SUBJECTS,
    FailedChecksError,
    check_dataset,
    check_plugin,
    check_projection,
)
from cswf_core.testing.flows import SHARED
from cswf_core.testing.outcome import in_words, run
from tests.plugins.faulty import FAULTS, SOUND, BlindToBrightness, Steps
from tests.project.pages import DOCS, blocks_of
from tests.project.sources import blocks, read

PYRAMID = "entries: ['(4×4) [3]', '(8×8) [5, 3]'], directions: 400"
PARAMETERS = {
    "high-pass": ("{use: high-pass, of: {use: locally-connected, patch: 3}}",),
    "exemplars": ("{use: exemplars, of: {use: conv-stack, patch: 3}, patch: 3}",),
    "low-rank": ("{use: low-rank, patch: 5}",),
    "conv-stack": ("conv-stack", "{use: conv-stack, patch: 5, width: 6, units: 7}"),
    "orthogonal": ("orthogonal", "{use: orthogonal, patch: 3}"),
    "histogram": ("histogram", "{use: histogram, tail: 0.01}"),
    "sorted": ("sorted", "{use: sorted, rank: half}", "{use: sorted, rank: released}"),
    "one-hot": ("one-hot", "{use: one-hot, prior: [3, 1, 1], labels: balanced}"),
    "mask": ("mask", "{use: mask, hidden: boxes, masks: each}"),
    "super-resolution": ("{use: super-resolution, size: 4}",),
    "constant": ("{use: constant, steps: 600, directions: 256}",),
    "pyramid": (f"{{use: pyramid, {PYRAMID}, decay: 0.5}}",),
    "adaptive": (f"{{use: adaptive, {PYRAMID}}}",),
    "toy-2d": ("{use: toy-2d, count: 200, target: [{mean: [1, 1]}], initial: [{mean: [-1, 0]}]}",),
    "synthetic": ("{use: synthetic, count: 200, shape: [3, 8, 8], classes: 3, dequantise: step}",),
    "mnist": ("{use: mnist, download: false, count: 200}",),
    "fashion-mnist": ("{use: fashion-mnist, download: false, count: 200}",),
    "cifar10": ("{use: cifar10, download: false, count: 200}",),
    "celeba": ("{use: celeba, count: 50}",),
    "nearest-neighbours": ("{use: nearest-neighbours, spaces: [pixels]}",),
    "class-accuracy": ("{use: class-accuracy, steps: 12}",),
}
"""Parameters with which a plugin is checked, small or needed; beyond the first, in `make test-all`."""

NETWORK = {
    "fid-infinity",
    "fid",
    "kid",
    "precision-recall",
    "density-coverage",
    "class-fid",
    "completion-fid",
    "perceptual-distance",
}
"""Metrics that look at images with a network, which takes a tenth of a second for each."""

LARGE = {"fashion-mnist", "cifar10", "celeba"}
"""Published data of which many are read before some are taken; `mnist` stands for them."""

FILES = {"npz", "image-folder", "packed"}
"""Data that are read from a file, which has to be made first."""


def cases():
    for plugin in Registry.discover(environment={LOAD_ONLY: ""}).plugins:
        kind, name = plugin.owner.kind, plugin.owner.name
        for number, text in enumerate(PARAMETERS.get(name, (name,))):
            slow = number or name in NETWORK | LARGE or name == "class-accuracy"
            marks = [pytest.mark.slow] if slow else []
            yield pytest.param(kind, name, text, id=f"{kind}-{text}", marks=marks)


def from_files(folder, name):
    """The choice of a data source that reads files, which are written first."""
    images = np.random.default_rng(0).integers(0, 256, (24, 3, 8, 8), dtype=np.uint8)
    np.savez(folder / "a.npz", images=images, labels=np.arange(24) % 3)
    if name == "image-folder":
        for number, image in enumerate(images):
            place = folder / "pictures" / f"class-{number % 3}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(place / f"{number}.png")
        return f"{{use: image-folder, path: {folder / 'pictures'}, size: 8}}"
    npz = f"{{use: npz, path: {folder / 'a.npz'}}}"
    if name == "npz":
        return npz
    data = choose(Registry.discover(), "dataset", npz).checked.load(Key(0, "data").open())
    pack(LoadedImages.of(data), folder / "packed", source={"use": "test"}, seed=0, per_shard=10)
    return f"{{use: packed, path: {folder / 'packed'}}}"


@pytest.mark.parametrize(("kind", "name", "text"), list(cases()))
def test_every_built_in_plugin_passes_the_kit(kind, name, text, registry, tmp_path):
    text = from_files(tmp_path, name) if name in FILES else text
    outcomes = check_plugin(kind, choose(registry, kind, text).part)
    assert [str(outcome) for outcome in outcomes if outcome.result == "failed"] == []
    own = outcomes[len(SHARED) :]
    if all(outcome.result == "skipped" for outcome in own):
        pytest.skip(own[0].sentence)


def tried(kind, plugin, claims):
    """The outcomes of some checks of a kind."""
    checks = [check for check in KITS[kind] if in_words(check.__name__) in claims]
    (subject,) = (subject for subject in SUBJECTS if subject.kind == kind)
    return run(checks, subject(plugin), {}, None)


@pytest.mark.parametrize(
    ("kind", "plugin", "claim"),
    [pytest.param(*fault, id=f"{fault[1].__name__}-{fault[2].replace(' ', '_')}") for fault in FAULTS],
)
def test_a_fault_is_caught_by_its_check(kind, plugin, claim):
    (outcome,) = tried(kind, plugin(), {claim})
    assert outcome.result == "failed", outcome
    assert outcome.sentence
    assert "\n" not in outcome.sentence


@pytest.mark.parametrize(("kind", "plugin"), SOUND)
def test_the_plugins_that_faulty_ones_derive_from_are_sound(kind, plugin):
    claims = {claim for other, _, claim in FAULTS if other == kind}
    assert [str(outcome) for outcome in tried(kind, plugin(), claims) if outcome.result == "failed"] == []


def test_all_failures_are_in_one_error_with_what_was_expected_and_what_came():
    with pytest.raises(FailedChecksError) as error:
        check_projection(BlindToBrightness(), spaces=[Space((4,))])
    assert isinstance(error.value, AssertionError)
    head, *failures = str(error.value).splitlines()
    assert head.startswith("projection 'BlindToBrightness' (tests.plugins.faulty): 1 of ")
    assert failures == [
        "  - directions span the space: expected directions that span all 4 dimensions of 4, got 1 that no "
        "direction looks at (the mean of all coordinates is one: brightness, for images): particles would "
        "never move along them",
    ]


def test_a_claim_can_be_excused_with_a_reason_and_an_unknown_one_is_refused():
    excuse = {"directions_span_the_space": "brightness is another sampler's"}
    outcomes = check_projection(BlindToBrightness(), spaces=[Space((4,))], excused=excuse)
    (excused,) = [o for o in outcomes if o.sentence.startswith("excused")]
    assert (excused.result, excused.claim) == ("skipped", "directions span the space")
    with pytest.raises(
        PluginError, match=r"no check 'directions span space'; did you mean 'directions span the"
    ):
        check_projection(BlindToBrightness(), excused={"directions_span_space": ""})


def test_outcomes_are_told_as_they_come_and_an_unknown_kind_is_one_sentence():
    told = []
    assert check_plugin("cdf", Steps(), on_result=told.append) == told
    assert all(outcome.seconds < 5 for outcome in told)
    with pytest.raises(PluginError, match="no kind of plugin 'projektion'; did you mean 'projection'"):
        check_plugin("projektion", None)


@attrs.frozen
class Elsewhere(DatasetSource):
    """Data that are on another machine."""

    def load(self, draw):
        raise DataError("the images are on another machine")


def test_a_plugin_of_which_nothing_could_be_checked_does_not_pass():
    with pytest.raises(FailedChecksError, match="nothing could be checked: the images are on another machine"):
        check_dataset(Elsewhere())


def test_a_class_in_place_of_an_object_is_told():
    with pytest.raises(FailedChecksError, match=r"a class: write the parentheses"):
        check_projection(BlindToBrightness)


def test_the_docs_name_every_check_with_what_it_proves():
    text = " ".join(read("docs/testing-a-plugin.md").split())
    assert KITS.keys() == KINDS.keys()
    for kit in KITS.values():
        for check in kit:
            proof = " ".join(check.__doc__.split())
            assert check.__doc__.strip().splitlines()[0].endswith("."), check.__name__
            assert f"| {in_words(check.__name__)} | {proof} |" in text, check.__name__


def test_the_faults_of_the_tutorial_s_plugin_are_those_in_the_docs():
    first, contrast, *_ = [b.text for b in blocks_of(DOCS / "plugins.md") if "title" in b.words]
    tutorial = {"__name__": "contrast"}
    for code in (first, contrast.replace("from strokes import Strokes\n", "")):
        exec(compile(code, "docs/plugins.md", "exec"), tutorial)
    with pytest.raises(FailedChecksError) as error:
        check_projection(tutorial["Contrast"]())
    assert f"{error.value}\n" == blocks("docs/testing-a-plugin.md", "text")[0]
