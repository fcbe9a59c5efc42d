"""Checks of projection samplers."""

from __future__ import annotations

import torch
from torch import Tensor

from cswf_core.checks import CheckedSampler
from cswf_core.checks.adapter import farthest_from_unit, not_finite
from cswf_core.errors import DataError, PluginError
from cswf_core.flow.stability import MISTAKEN
from cswf_core.interfaces import DenseProjection, Draw, Key, NonlinearProjection, Projection, Space
from cswf_core.recipe import Recipe
from cswf_core.testing.flows import (
    COLOUR,
    GREY,
    POINTS,
    SpaceSubject,
    bare,
    constant,
    flowed,
    recipe_with,
    require_nearer,
    samples,
)
from cswf_core.testing.outcome import FaultError, SkipError, refusals, require

COUNT = 40
"""Directions of most checks."""

UNEVEN = 2.0
"""From this λ·d on, a step of η = d makes errors grow."""


def draw(index: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu", step: int = 0) -> Draw:
    """Return the draw of a batch of directions of a step."""
    return Key(7, "directions", 0, step, index).open(device, dtype)


def numbers_of(projection: Projection, stream: Draw) -> Tensor:
    """Return directions as a matrix (H×d), times their weights; of nonlinear slices, values at eight points."""
    if isinstance(projection, NonlinearProjection):
        points = Key(5, "points").open(stream.device, stream.dtype).normal(projection.shape[1], 8)
        return projection.project(points)
    theta = projection.dense()
    return theta if projection.weights is None else theta * projection.weights[:, None]


class SamplerSubject(SpaceSubject[CheckedSampler]):
    """A projection sampler, and the spaces that it is tried in."""

    kind = "projection"
    wanted = "directions in"

    def sampler(self, space: Space, dtype: torch.dtype = torch.float64) -> CheckedSampler:
        """Return the sampler for a space, which has seen data and particles there if it looks at them."""
        x = samples(space).x.to(dtype)
        sampler = self.checked
        if sampler.sees_data:
            sampler = sampler.fitted(space, x)
        if sampler.adapts:
            particles = Key(3, "particles").open(dtype=dtype).normal(*x.shape)
            sampler = sampler.adapted(space, particles, x, Key(3, "adapt").open(dtype=dtype))
        return sampler

    def theta(self, space: Space, count: int = COUNT, stream: Draw | None = None) -> Tensor:
        """Return the numbers of a batch of directions, checked as the engine checks them; see `numbers_of`."""
        stream = draw() if stream is None else stream
        return numbers_of(self.sampler(space, stream.dtype).sample(space, count, stream), stream)

    def require_linear(self) -> None:
        """Raise `SkipError` if the sampler has nonlinear slices, which have no matrix."""
        if isinstance(self.sampler(self.space).sample(self.space, 2, draw()), NonlinearProjection):
            raise SkipError("its slices are nonlinear, and have gradients in the place of directions")

    def attempt(self, space: Space) -> None:
        """Draw directions; a fault other than a refusal is for other checks to tell."""
        try:
            self.theta(space, 2)
        except DataError:
            raise
        except Exception:
            pass

    @property
    def space(self) -> Space:
        """The space that most checks look at: the first that the sampler takes."""
        return self.usable[0]

    def answers(self) -> list[Tensor]:
        """Return batches of directions, of which the first is drawn again after the others; some in float32."""
        sampler = self.sampler(self.space)
        batches = ((COUNT, 3), (5, 0), (COUNT, 1), (3 * COUNT, 2))
        drawn = (sampler.sample(self.space, count, draw(index=index)) for count, index in batches)
        single = self.theta(self.space, stream=draw(dtype=torch.float32))
        return [single, *(numbers_of(directions, draw()) for directions in drawn)]

    def recipe(self) -> Recipe:
        """Return the recipe of a short flow with the sampler."""
        schedule = constant(4 * self.space.dimension)
        return recipe_with("projection", self.plugin, bare(samples(self.space)), schedule=schedule)


def directions_have_unit_length(subject: SamplerSubject) -> None:
    """Every direction has length 1 within 10⁻⁵ in float64, in every space: SW₂ and steps are scaled by it."""
    subject.require_linear()
    for space in subject.usable:
        theta = subject.sampler(space).sample(space, COUNT, draw()).dense()
        worst, length = farthest_from_unit(theta)
        require(abs(length - 1) < 1e-5, "length 1", f"length {length:.6g} of direction {worst} in {space}")


def directions_are_finite(subject: SamplerSubject) -> None:
    """No direction has NaN or infinity, among many of them."""
    sampler = subject.sampler(subject.space)
    theta = numbers_of(sampler.sample(subject.space, 50 * COUNT, draw(), check=False), draw())
    bad = not_finite(theta, dim=1)
    require(bad == 0, "finite numbers", f"NaN or infinity in {bad} of {len(theta)} directions")


def batches_of_a_step_differ(subject: SamplerSubject) -> None:
    """Other keys give other directions: the batches of a step, and the steps."""
    first = subject.theta(subject.space)
    for noun, stream in (("batch", draw(index=1)), ("step", draw(step=1))):
        same = torch.equal(first, subject.theta(subject.space, stream=stream))
        require(not same, f"other directions in the next {noun}, whose key is another", "the same ones")


def the_device_is_that_of_the_draw(subject: SamplerSubject) -> None:
    """Directions are on `draw.device`; without a GPU, PyTorch's device `meta`, without numbers, stands in."""
    device = "cuda" if torch.cuda.is_available() else "meta"
    stream = draw(dtype=torch.float32, device=device)
    sampler = subject.checked.plugin
    x = samples(subject.space).x.to(device)
    try:
        if sampler.sees_data:
            sampler = sampler.fitted(subject.space, x)
        if sampler.adapts:
            sampler = sampler.adapted(subject.space, torch.zeros_like(x), x, draw(1, torch.float32, device))
        answer = sampler.sample(subject.space, COUNT, stream)
        theta = numbers_of(answer, stream) if isinstance(answer, Projection) else answer
    except NotImplementedError as error:
        raise SkipError(f"no GPU is here, and device 'meta' cannot do all that it does ({error})") from None
    except RuntimeError as error:
        sentence = str(error).splitlines()[0]
        if not any(word in sentence for word in ("device", "meta")):
            raise
        if "data-dependent" in sentence or "meta tensors" in sentence:
            raise SkipError(
                f"no GPU is here, and device 'meta' has no numbers to look at ({sentence})"
            ) from None
        raise FaultError(
            f"work on draw.device, here '{device}'", f"{sentence} (give new tensors device=draw.device)"
        ) from None
    if not isinstance(theta, Tensor):
        raise FaultError("a tensor or a Projection", type(theta).__name__)
    expected = f"directions on draw.device, here '{device}'"
    require(theta.device.type == device, expected, f"directions on '{theta.device}'")


def tensors_make_the_sampler_again(subject: SamplerSubject) -> None:
    """`of_tensors` makes a sampler of what `tensors` returned that draws the same directions, to the bit."""
    checked = subject.checked
    if not checked.sees_data:
        raise SkipError("it does not look at the data")
    if checked.lacking is not None:
        raise SkipError("it has no `of_tensors`, so models cannot be saved with it")
    for space in subject.usable:
        for dtype in (torch.float64, torch.float32):
            like = torch.empty(space.dimension, 0, dtype=dtype)
            first = checked.fitted(space, samples(space).x.to(dtype))
            tensors = {name: part.clone() for name, part in first.tensors().items()}
            again = checked.of_tensors(space, tensors, like)
            expected, got = (
                numbers_of(sampler.sample(space, COUNT, draw(dtype=dtype)), draw(dtype=dtype))
                for sampler in (first, again)
            )
            require(
                torch.equal(expected, got),
                "the same directions, to the bit, of the sampler made again",
                f"values up to {float((expected - got).abs().max()):.3g} apart in {space}, {dtype}",
            )


def an_operator_agrees_with_its_matrix(subject: SamplerSubject) -> None:
    """`project` and `adjoint` of a `Projection` are θ x and θᵀ a for the θ of `dense()`, on random x and a."""
    answer = subject.sampler(subject.space).sample(subject.space, COUNT, draw())
    if isinstance(answer, DenseProjection):
        raise SkipError("it returns a matrix, or filters whose products the engine takes")
    subject.require_linear()
    for method, gap, _ in subject.checked.product_gaps(answer, answer.dense()):
        require(gap < 1e-5, f"`{method}` to be the product with dense()", f"values {gap:.3g} apart")


def spaces_are_taken_or_refused_in_a_sentence(subject: SamplerSubject) -> str:
    """Directions for points, and images: grey, in colour, oblong, and of one pixel as a pyramid may have them.

    A sampler that needs others says so with a `DataError`.
    """
    nouns = {
        Space((1, 1, 1)): "images of one pixel",
        Space((1, 7, 9)): "oblong images",
        GREY: "grey images",
        COLOUR: "colour images",
        POINTS: "points",
    }
    if subject.chosen:
        nouns = {space: str(space) for space in subject.spaces}

    def drawn(space: Space) -> None:
        try:
            subject.theta(space)
        except PluginError as error:
            if " raised " not in str(error):
                raise
            advice = "space.grid(\"projection 'mine'\") raises it"
            expected = f"directions, or a DataError if it needs other data ({advice})"
            raise FaultError(expected, f"{error}, in {space}") from None

    return refusals(nouns, drawn)


def directions_span_the_space(subject: SamplerSubject) -> str:
    """E[θθᵀ] has no eigenvalue 0: along such a vector particles would never move.

    Remarks on vectors that are hardly looked at, and on unevenness, which steps of η = d may not bear.
    """
    subject.require_linear()
    if subject.checked.adapts:
        raise SkipError("its directions follow the particles, and are others at every step")
    remarks = []
    for space in subject.usable:
        d = space.dimension
        count = 40 * max(d, 8)
        theta = subject.theta(space, count)
        values, vectors = torch.linalg.eigh(theta.T @ theta / count)
        scaled = values * d
        blind = int((scaled < 1e-6).sum())
        require(
            blind == 0,
            f"directions that span all {d} dimensions of {space}",
            f"{blind} that no direction looks at{_example(vectors[:, :blind])}: particles would "
            "never move along them",
        )
        remarks += _remarks(subject, scaled, space)
    return "; ".join(remarks)


def _example(blind: Tensor) -> str:
    """Return an example of some vectors (d×k, orthonormal), in words, if one is easily named."""
    d = len(blind)
    brightness = torch.full((d,), d**-0.5, dtype=blind.dtype)
    if float((blind.T @ brightness).norm()) > 0.999:
        return " (the mean of all coordinates is one: brightness, for images)"
    unseen = (blind.square().sum(dim=1) > 0.999).nonzero()[:, 0].tolist()
    return f" (coordinate {unseen[0]} is one)" if unseen else ""


def _remarks(subject: SamplerSubject, scaled: Tensor, space: Space) -> list[str]:
    """Return remarks on the eigenvalues λ·d of E[θθᵀ]; raise `FaultError` if they are said to be even."""
    least = float(scaled[0])
    largest = float(scaled[-1])
    spread = f"λ·d of E[θθᵀ] goes from {least:.2g} to {largest:.2g} in {space}"
    even = 0.6 < least <= largest < 1.5  # the bounds of estimates, where E[θθᵀ] is even
    require(even or not subject.checked.isotropic, "E[θθᵀ] = I/d, as `isotropic = True` says", spread)
    remarks = []
    dim = int((scaled < 0.05).sum())
    if dim:
        remarks.append(f"{spread}, so that {dim} of {len(scaled)} dimensions are hardly looked at")
    if largest > UNEVEN and not subject.checked.tempered:
        fate = "run away" if largest > MISTAKEN else "grow, and the engine shortens them"
        remarks.append(
            f"{'it is uneven' if dim else spread}: steps of η = d would {fate}; `tempered = True` says that "
            "this is so on purpose, and keeps every step below 1/λ"
        )
    if subject.checked.tempered and largest < UNEVEN:
        remarks.append(f"{spread}: `tempered` is not needed, and makes steps shorter with few directions")
    return remarks


def a_pyramid_sets_its_patches(subject: SamplerSubject) -> str:
    """Through `patched`, the schedule `pyramid` sets the side of patches on grids of 4×4 and 8×8.

    It sets the distance between a patch's pixels too, where the sampler has one.
    """
    space = next((space for space in subject.usable if space.is_image and min(space.shape[1:]) >= 8), None)
    if space is None:
        raise SkipError("it takes no images of 8×8 pixels or more, and a pyramid is for images")
    subject.require_linear()
    remark = ""
    for dilation, entries in ((1, ["(4×4) [3]", "(8×8) [5, 3]"]), (2, ["(8×8) [3] dilation=2", "(8×8) [3]"])):
        adds = "`patch: int`" if dilation == 1 else "`patch: int` and `dilation: int`"
        try:
            subject.checked.plugin.patched(3, dilation)
        except DataError:
            remark = f"a pyramid sets {adds}, which it does not have: add it as a parameter"
            if dilation == 1:
                raise SkipError(remark) from None
            continue
        schedule = {"use": "pyramid", "entries": entries, "steps": 3, "directions": 4 * space.dimension}
        recipe = recipe_with("projection", subject.plugin, bare(samples(space)), schedule=schedule)
        require_nearer(*flowed(recipe))
    return remark
