"""A model as people use it: loaded from a run's folder, and asked for samples."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import attrs
import torch
from torch import Tensor

from cswf_core.errors import CswfError, DataError, RunError
from cswf_core.flow.setup import Beginning, originals
from cswf_core.interfaces import BIN, Conditions, Dataset, Key, Masked, Observation, Space
from cswf_core.interfaces.metric import Tell
from cswf_core.kernels.memory import require_memory
from cswf_core.model.format import HEADER, ModelHeader, unpack_mask
from cswf_core.model.requests import (
    ByNumber,
    Labels,
    Originals,
    SampleRequest,
    Vectors,
    class_number,
    labels_by_number,
    pixels_of,
    vectors_by_number,
)
from cswf_core.model.sampling import SavedFlow
from cswf_core.plugins import BUILTIN, PluginFolders, as_options
from cswf_core.ranks import Ranks
from cswf_core.recipe import Recipe, RecipeError, choose_device, load_recipe
from cswf_core.recipe.build import load_everything
from cswf_core.recipe.provenance import refuse_changed_plugins
from cswf_core.recipe.render import from_yaml
from cswf_core.runs.durable import find_damage

log = logging.getLogger("cswf")

UNUSED_SECTIONS = ("cdf", "observers", "evaluate", "outputs", "model", "variants")
"""Sections of a recipe that sampling does without, so that their plugins need not be there."""

USE_SHARDS = "ask for fewer; `cswf sample --out FOLDER/`, with the slash, writes shards in constant memory"


@attrs.frozen(eq=False)
class Model:
    """The maps of a run's steps, and the recipe whose plugins draw the directions that they belong to."""

    folder: Path
    header: ModelHeader
    recipe: Recipe = attrs.field(repr=False)

    @property
    def space(self) -> Space:
        """The space that samples live in."""
        return Space(self.header.data.shape)

    def sample(
        self,
        count: int,
        *,
        labels: Labels | None = None,
        vectors: Vectors | None = None,
        seed: int = 0,
        device: str = "auto",
        tell: Tell | None = None,
    ) -> Dataset:
        """Return `count` new samples, each from noise of its own.

        The same seed gives the same samples, and the first of many are those of few.

        Args:
            labels: One class for all, one for each, or how many of each; None: the data's proportions.
            vectors: One vector for all, or one for each, with any values.
            seed: Seed of the noise, and of the order of classes.
            device: Device to work on, as in a recipe.
            tell: Hears of progress.
        """
        self._require_memory(count)
        request = self.request(count, labels=labels, vectors=vectors, seed=seed)
        return self._samples(request, self.flow(choose_device(device)), tell)

    def _require_memory(self, count: int, remedy: str = USE_SHARDS) -> None:
        """Raise `OutOfMemoryError` if this machine's memory does not hold `count` samples."""
        size = count * self.space.dimension * self.header.dtype.itemsize
        require_memory(size, f"{count:,} samples of {self.space}", remedy)

    def request(
        self, count: int, *, labels: Labels | None = None, vectors: Vectors | None = None, seed: int = 0
    ) -> SampleRequest:
        """Return the request of `sample`; Y is as requested, else as particles begin, else as in the data."""
        if count < 1:
            raise RunError(f"{count} samples are asked for; ask for one or more")
        asks = self.header.condition.asks
        if "image" in asks:
            name = self.header.name
            raise RunError(f"the model of '{name}' completes images: use `cswf inpaint`, or Model.complete")
        source = self.recipe.data
        if source.checked.starts or "vectors" in asks:
            self._require_memory(count)
        own = Conditions()
        x: Tensor | None = None
        if source.checked.starts:
            data = self._needed(f"dataset '{source.name}' says where particles begin")
            start = source.checked.start(data, count, Key(seed, "offline start").open(dtype=self.header.dtype))
            own = start.conditions
            x = start.x
        kinds: dict[str, ByNumber] = {}
        if labels is not None or ("labels" in asks and own.labels is None):
            kinds["labels"] = labels_by_number(self.header, count, labels, seed)
        elif "labels" in asks and own.labels is not None:
            for label in torch.unique(own.labels).tolist():
                class_number(self.header, label)  # raises if the model has no maps for it
            kinds["labels"] = own.labels.__getitem__
        if vectors is None and "vectors" in asks and own.vectors is None:
            data = self._needed(f"'{self.header.name}' needs vectors")
            own = self.recipe.condition.checked.draw(data, count, Key(seed, "offline labels").open())
        if vectors is not None:
            kinds["vectors"] = vectors_by_number(self.header, count, vectors)
        elif "vectors" in asks and own.vectors is not None:
            kinds["vectors"] = partial(own.vectors.index_select, 1)

        def conditions(index: Tensor) -> Conditions:
            return Conditions(**{kind: of(index) for kind, of in kinds.items()})

        return SampleRequest(conditions, count, seed, x)

    def complete(
        self,
        images: Tensor,
        *,
        mask: Tensor | None = None,
        count: int = 1,
        seed: int = 0,
        device: str = "auto",
        tell: Tell | None = None,
    ) -> Dataset:
        """Return `count` completions of each image, in the order of images; what is given does not change.

        Args:
            images: m×C×H×W bytes.
            mask: Where pixels are given: H×W, or m×H×W; None: where the model's condition says.
            count: Number of completions of each image.
            seed: Seed of the noise, and of masks that the condition draws.
            device: Device to work on, as in a recipe.
            tell: Hears of progress.
        """
        self.refuse_unless_completing()
        if images.ndim != 4 or images.shape[1:] != self.space.shape or images.dtype != torch.uint8:
            shape = "×".join(map(str, images.shape))
            raise RunError(f"images must be m×{self.space} bytes, got {shape} of {images.dtype}")
        if count < 1 or not len(images):
            raise RunError(f"{count} completions of {len(images)} images are asked for; ask for one or more")
        self._require_memory(count * len(images), "ask for fewer completions, or of fewer images at a time")
        flow = self.flow(choose_device(device))
        x = pixels_of(images, flow.like.dtype)
        origin = torch.repeat_interleave(torch.arange(len(images)), count)
        observed = self.observation(images, mask=mask, seed=seed, like=flow.like)
        width = BIN if self.header.data.bin_width else 0.0
        if not width and getattr(self.recipe.data.part, "dequantise", "none") in ("once", "middle"):
            x += BIN / 2  # where the data's pixels are, with noise or without
        parts = Originals(x, origin, observed, width)
        request = SampleRequest(Conditions(origin=origin).take, len(origin), seed, originals=parts)
        return self._samples(request, flow, tell)

    def refuse_unless_completing(self) -> None:
        """Raise `RunError` if the model does not complete images."""
        if "image" not in self.header.condition.asks:
            raise RunError(f"the model of '{self.header.name}' completes no images: use `cswf sample`")

    def observation(
        self, images: Tensor, *, mask: Tensor | None = None, seed: int = 0, like: Tensor | None = None
    ) -> Observation:
        """Return what `complete` sees of images: the same of all, or a mask with a column for each.

        `like` has the device and the numbers that are wanted; None: the CPU, and the model's precision.
        """
        like = torch.empty(0, dtype=self.header.dtype) if like is None else like
        facts = self.header.condition
        condition = self.recipe.condition
        if mask is not None:
            if facts.shared:
                log.warning("the model has learned to complete something else than this mask leaves out")
            return Masked(self._columns(mask, len(images)).to(like.device))
        if facts.mask is not None:
            return Masked(unpack_mask(facts.mask, self.space.dimension).to(like.device))
        data = Dataset(pixels_of(images, like.dtype), self.space, bin_width=BIN)

        def seen(image: int, key: Key) -> Observation:
            origin = Conditions(origin=torch.tensor([image]))
            draw = key.open(like.device, like.dtype)
            observation: Observation | None = condition.checked.observation(data, origin, draw)
            if observation is None:
                raise RunError(f"condition '{condition.name}' sees nothing of an image")
            return observation.to(like.device)

        if facts.shared:
            return seen(0, Key(self.recipe.seed, "observation"))
        masks = []
        for image in range(len(images)):
            own = seen(image, Key(seed, "offline mask", index=image))
            if not isinstance(own, Masked):
                sees = "the model sees something else of each image, and not by a mask"
                raise RunError(f"{sees}: it cannot be told what")
            masks.append(own.mask)
        return Masked(torch.cat(masks, dim=1))

    def retrace(self, *, device: str = "auto", tell: Tell | None = None) -> Dataset:
        """Return the run's own samples once more: its particles, from where they began, through the saved maps.

        Needs the data. They end where they did, unless noise is added on the way; rounding may differ in the
        last group of particles, if that is not whole.
        """
        data = self.data()
        flow = self.flow(choose_device(device))
        count = self.header.particles
        draw = Key(self.recipe.seed, "start").open(dtype=self.header.dtype)
        start = self.recipe.data.checked.start(data, count, draw)
        settings = attrs.evolve(
            flow.settings, offline=0 if start is not None else self.recipe.particles.offline
        )
        beginning = Beginning(data, flow.parts, settings, flow.like, start, flow.fitted.gaussian)
        particles, conditions, observation = beginning.first_particles(Ranks())
        images = None
        if observation is not None:
            x = originals(data, flow.settings, particles.conditions, particles.x).cpu()
            images = Originals(x, torch.arange(count), observation)
        request = SampleRequest(conditions.take, count, self.recipe.seed, particles.x.cpu(), images)
        return self._samples(request, flow, tell)

    def data(self) -> Dataset:
        """Load the data that the model was made from; raise `RunError` if they are others by now."""
        data = load_everything(self.recipe, stored=self.header.data.streamed)
        if data.digest() != self.header.data.sha256:
            raise RunError(
                f"the data of '{self.recipe.data.name}' are not those that the model was made from: their "
                f"SHA-256 is {data.digest()[:12]}…, was {self.header.data.sha256[:12]}…"
            )
        return data

    def held_out_images(self, count: int) -> Tensor:
        """Load the first `count` images that the model's data hold out: m×C×H×W bytes."""
        held_out = self.data().held_out
        available = 0 if held_out is None else len(held_out)
        if held_out is None or count > available:
            name = self.recipe.data.name
            raise DataError(
                f"{count:,} held-out images are wanted, and the data of '{name}' hold out {available:,}"
            )
        return held_out.take(torch.arange(count)).images()

    def _samples(self, request: SampleRequest, flow: SavedFlow, tell: Tell | None) -> Dataset:
        """Return all samples of a request."""
        x = torch.empty(flow.space.dimension, request.count, dtype=flow.like.dtype)
        for first, part in flow.drawn(request, range(0, request.count, flow.size), tell):
            x[:, first : first + part.shape[1]] = part
        return self.dataset(x, request.conditions(torch.arange(request.count)))

    def dataset(self, x: Tensor, conditions: Conditions) -> Dataset:
        """Return particles (d×n) and their conditions as a data set."""
        return Dataset(x=x, space=self.space, conditions=conditions, classes=self.header.data.classes)

    def _needed(self, why: str) -> Dataset:
        """Load the data where there is no way without them."""
        try:
            return self.data()
        except CswfError as error:
            raise RunError(f"{why}, so that sampling needs the data: {error}") from None

    def flow(self, device: torch.device) -> SavedFlow:
        """Return this model's steps on a device."""
        recipe = self.recipe
        flow = SavedFlow(self.folder, self.header, recipe, device)
        saved = [(stage.directions, stage.steps) for stage in self.header.stages]
        if saved != [(stage.directions, stage.steps) for stage in flow.stages]:
            raise RunError(
                f"the schedule of '{self.header.name}' plans other stages than those of the model: schedule "
                f"'{recipe.schedule.name}' has changed since, or {self.folder / HEADER} is damaged"
            )
        return flow

    def _columns(self, mask: Tensor, images: int) -> Tensor:
        """Return a mask (H×W or m×H×W) for all coordinates: d×1, or d×m."""
        channels, height, width = self.space.grid("a mask")
        if mask.shape not in ((height, width), (images, height, width)):
            got = "×".join(map(str, mask.shape))
            raise RunError(f"a mask has {height}×{width} pixels, or one for each of {images} images; got {got}")
        each = mask.bool().reshape(-1, 1, height * width).expand(-1, channels, -1)
        columns = each.reshape(len(each), -1).T
        if bool(columns.all(dim=0).any()) or not bool(columns.any()):
            lack = "nothing to fill in" if bool(columns.any()) else "nothing to see"
            raise RunError(f"a mask leaves {lack}; it is true where pixels are given")
        return columns


def header_file(path: Path) -> Path:
    """Return the header of the model that a path means: a run's folder, a model's, or the header itself."""
    for place in (path, path / HEADER, path / "model" / HEADER):
        if place.name == HEADER and place.is_file():
            return place
    if not path.exists():
        raise RunError(f"{path} does not exist; give a run's folder, a model's folder or its {HEADER}")
    if (path / "run.json").is_file():
        raise RunError(f"{path} has no model; a run saves one with model.save=true")
    raise RunError(f"{path} has no model: there is no {HEADER} in it")


def load_model(path: str | Path, *, plugins_dir: PluginFolders = None) -> Model:
    """Return the model of a run's folder, a model's folder or a header; raise `RunError` if it is unusable."""
    file = header_file(Path(path))
    header = ModelHeader.read(file)
    if not header.complete:
        run = file.parent.parent
        resume = f"`cswf resume {run}{as_options(plugins_dir)}`"
        hint = f": {resume} goes on with its run" if (run / "run.json").is_file() else ""
        raise RunError(f"{file.parent} is not complete: it has {header.steps:,} steps{hint}")
    recipe = recipe_of(header, file, plugins_dir)
    refuse_changed_plugins(recipe, header.plugins, str(file.parent))
    damage = find_damage(file.parent, header.files)
    if damage:
        raise RunError(*damage)
    return Model(file.parent, header, recipe)


def recipe_of(header: ModelHeader, file: Path, plugins_dir: PluginFolders = None) -> Recipe:
    """Return the recipe in a header, as far as sampling needs it."""
    try:
        sections = from_yaml(header.recipe)
        needed = {key: value for key, value in sections.items() if key not in UNUSED_SECTIONS}
    except (RecipeError, AttributeError):
        raise RunError(f"{file} is damaged: the recipe in it cannot be read") from None
    try:
        return load_recipe(needed, plugins_dir=plugins_dir)
    except RecipeError as error:
        reasons = "; ".join(problem.message for problem in error.problems)
        others = [facts for facts in header.plugins if facts.get("distribution") != BUILTIN]
        origins = sorted({f"{facts['distribution']} {facts['version']}".strip() for facts in others})
        hint = f"; it was made with plugins of {', '.join(origins)}: install these, or give --plugins-dir"
        raise RunError(
            f"{file}: the model's recipe cannot be followed here: {reasons}{hint if origins else ''}"
        ) from None
