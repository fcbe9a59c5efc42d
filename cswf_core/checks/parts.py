"""Adapters of four of the plugins that make a flow: projection, CDF, condition and schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cswf_core.checks.adapter import Adapter, calling, short, sizes
from cswf_core.checks.data import check_conditions
from cswf_core.errors import DataError
from cswf_core.interfaces import (
    CDFEstimator,
    ConditionEncoder,
    Conditions,
    Dataset,
    DenseProjection,
    Draw,
    FittedCDF,
    Observation,
    Owner,
    Part,
    Projection,
    ProjectionSampler,
    Rows,
    Schedule,
    Space,
    Stage,
    Stratum,
    TransportMap,
)

FEW = 64
"""Samples that are enough to check an observation on."""


class CheckedSampler(Adapter, ProjectionSampler):
    """A projection sampler whose directions have the right shape, unit length and one adjoint."""

    def __init__(self, plugin: ProjectionSampler, owner: Owner) -> None:
        self._adapt(plugin, owner)
        self.tempered, self.sees_data, self.isotropic = plugin.tempered, plugin.sees_data, plugin.isotropic

    def sample(self, space: Space, count: int, draw: Draw, *, check: bool = True) -> Projection:
        """Return `count` directions as an operator; `check` checks lengths, and an operator's products."""
        answer, shape = self._call("sample", space, count, draw), (count, space.dimension)
        if isinstance(answer, Tensor):
            self._tensor(answer, "sample", shape, draw.dtype, draw.device)
            projection: Projection = DenseProjection(answer)
        elif not isinstance(answer, Projection):
            raise self._fault("sample", "a tensor or a Projection", type(answer).__name__)
        elif tuple(answer.shape) != shape:
            raise self._fault("sample", f"a {sizes(shape)} operator", f"shape {tuple(answer.shape)}")
        else:
            projection = answer
        if check:
            with calling(self.owner, "dense"):
                theta = projection.dense()
            self._unit(self._tensor(theta, "dense", shape, draw.dtype, draw.device), "sample")
            if not isinstance(projection, DenseProjection):
                self._check_operator(projection, theta)
        return projection

    def _check_operator(self, projection: Projection, theta: Tensor) -> None:
        """Compare `project` and `adjoint` with the dense matrix, on the directions themselves."""
        expected = theta @ theta.T
        pairs = (("project", projection.project(theta.T.contiguous()), expected),
                 ("adjoint", projection.adjoint(expected), theta.T @ expected))  # fmt: skip
        for method, got, wanted in pairs:
            self._like(got, method, wanted)
            if not torch.allclose(got, wanted, rtol=1e-3, atol=1e-3):
                gap = float((got - wanted).abs().max())
                raise self._fault(
                    method, f"what dense() ({sizes(theta.shape)}) gives", f"values {gap:.3g} apart"
                )

    def fitted(self, space: Space, z: Tensor) -> CheckedSampler:
        """Return the sampler that has seen the data, z (d_k×N), checked too."""
        answer = self._call("fitted", space, z)
        if not isinstance(answer, ProjectionSampler):
            raise self._fault("fitted", "a ProjectionSampler", type(answer).__name__)
        return CheckedSampler(answer, self.owner)

    def of_stage(self, stage: Stage) -> CheckedSampler:
        """Return the sampler of a stage: this one, or the stage's own behind its checks."""
        if stage.sampler is None:
            return self
        same = type(stage.sampler) is type(self.plugin)
        return CheckedSampler(stage.sampler, self.owner if same else Owner.of("projection", stage.sampler))

    def together(self, space: Space) -> int:
        """Return how many directions have to be drawn in one call."""
        answer = self._call("together", space)
        if not isinstance(answer, int) or answer < 1:
            raise self._fault("together", "a whole number, 1 or more", repr(answer))
        return answer


class CheckedCDF(Adapter, CDFEstimator):
    """A CDF estimator whose fits, maps and displacements are what the contract says."""

    def __init__(self, plugin: CDFEstimator, owner: Owner) -> None:
        self._adapt(plugin, owner)
        self.displaces, self.compact, self.bins = plugin.displaces, plugin.compact, plugin.bins
        self.extrapolates = plugin.extrapolates
        for side in ("particles", "data"):
            part: object = getattr(plugin, side)
            if part is not None and not isinstance(part, Part):
                raise self._fault(side, "None or a Part", repr(part))
        self.particles, self.data = plugin.particles, plugin.data

    def fit(self, values: Tensor) -> FittedCDF:
        """Fit one distribution to each row of H×n values."""
        return self._fitted(self._call("fit", values), "fit")

    def fit_rows(self, rows: Rows) -> FittedCDF:
        """Fit one distribution to each row, with all that is added to its values."""
        with calling(self.owner, "fit"):  # the name that plugins define, whether `fit_rows` is theirs or not
            answer = self.plugin.fit_rows(rows)
        return self._fitted(answer, "fit")

    def of_counts(
        self, below: Tensor, count: int, low: Tensor, high: Tensor, *, half: bool = False
    ) -> FittedCDF:
        """Return the distributions of counted values; `half` is passed on only where it is so."""
        extra = {"half": True} if half else {}
        return self._fitted(self._call("of_counts", below, count, low, high, **extra), "of_counts")

    def transport(self, p: Tensor, data: FittedCDF, *, check: bool = True) -> Tensor:
        """Return F_q⁻¹(F_p(p)): H×M → H×M."""
        image = self._like(self._call("transport", p, data), "transport", p)
        return self._finite(image, "transport") if check else image

    def image(self, p: Tensor, F_p: FittedCDF, F_q: FittedCDF, *, check: bool = True) -> Tensor:
        """Return F_q⁻¹(F_p(p)) where F_p was fitted to others than p: H×m → H×m."""
        with calling(self.owner, "icdf"):
            answer = F_q.icdf(F_p.cdf(p))
        image = self._like(answer, "icdf", p)
        return self._finite(image, "icdf") if check else image

    def between(self, p: FittedCDF, data: FittedCDF) -> CheckedMap | None:
        """Return T_h = F_q⁻¹∘F_p, checked where it is applied; None if the estimator composes no maps."""
        answer = self._call("between", p, data)
        if answer is not None and not isinstance(answer, TransportMap):
            raise self._fault("between", "a TransportMap", type(answer).__name__)
        return None if answer is None else CheckedMap(answer, self)

    def displace(self, rows: Rows, data: FittedCDF, *, check: bool = True) -> Tensor:
        """Replace p by δ = F_q⁻¹(F_p(p)) − p, in place, and return the sum of δ² of each row: H."""
        return self.sums(self._call("displace", rows, data), rows, check=check)

    def sums(self, squares: object, rows: Rows, *, check: bool) -> Tensor:
        """Return the sums of δ² that displacing rows has given: H."""
        totals = self._like(squares, "displace", rows.low)
        return self._finite(totals, "displace") if check else totals

    def _fitted(self, answer: object, method: str) -> FittedCDF:
        if not isinstance(answer, FittedCDF):
            raise self._fault(method, "a FittedCDF", type(answer).__name__)
        return answer


class CheckedMap(TransportMap):
    """A map of a CDF estimator's, whose sums are checked."""

    def __init__(self, plugin: TransportMap, cdf: CheckedCDF) -> None:
        self.plugin, self._cdf = plugin, cdf

    def displace(self, rows: Rows, *, check: bool = True) -> Tensor:
        """Replace the values p by δ = T(p) − p, in place, and return the sum of δ² of each row: H."""
        with calling(self._cdf.owner, "displace"):
            squares = self.plugin.displace(rows)
        return self._cdf.sums(squares, rows, check=check)


class CheckedCondition(Adapter, ConditionEncoder):
    """A condition encoder whose Y, θ_y, weights and observations are what the contract says."""

    def __init__(self, plugin: ConditionEncoder, owner: Owner) -> None:
        self._adapt(plugin, owner)
        amplifier: object = getattr(plugin, "amplifier", None)
        if not isinstance(amplifier, (int, float)) or not math.isfinite(amplifier):
            raise self._fault("amplifier", "a finite number ξ", repr(amplifier))
        self.amplifier = amplifier
        self.full_dimension, self.dequantised = plugin.full_dimension, plugin.dequantised
        self.carries_held_out = plugin.carries_held_out
        if self.dequantised and amplifier == 0:
            raise self._fault("dequantised", "False where the amplifier is 0", "True")

    def length(self, data: Dataset) -> int:
        """Return l, the dimension of Y."""
        answer: int = self._call("length", data)
        return answer

    def project(
        self, theta_y: Tensor, conditions: Conditions, *, count: int | None = None, check: bool = True
    ) -> Tensor:
        """Return θ_y·y for every direction and every sample: (H×l, n samples) → H×n.

        `count` is n, where the plugin may have Y itself, and conditions nothing to count.
        """
        shape = (theta_y.shape[0], len(conditions) if count is None else count)
        answer = self._call("project", theta_y, conditions)
        products = self._tensor(answer, "project", shape, theta_y.dtype, theta_y.device)
        return self._finite(products, "project") if check else products

    def draw(self, data: Dataset, count: int, draw: Draw) -> Conditions:
        """Return Y₀ of `count` particles, from q(y)."""
        answer = self._call("draw", data, count, draw)
        return check_conditions(answer, self.owner, "draw", count, len(data.classes))

    def directions(self, length: int, count: int, draw: Draw, *, check: bool = True) -> Tensor:
        """Return `count` vectors θ_y of unit length: count × l."""
        answer = self._call("directions", length, count, draw)
        theta_y = self._tensor(answer, "directions", (count, length), draw.dtype, draw.device)
        return self._unit(theta_y, "directions") if check else theta_y

    def weights(self, dimension: int, length: int, count: int, draw: Draw, *, check: bool = True) -> Tensor:
        """Return a, the length of the θ_x part of each direction, in [0, 1]: `count` numbers."""
        answer = self._call("weights", dimension, length, count, draw)
        a = self._tensor(answer, "weights", (count,), draw.dtype, draw.device)
        if check and not bool(((a >= 0) & (a <= 1)).all()):
            raise self._fault("weights", "lengths in [0, 1]", f"{float(a.min())} … {float(a.max())}")
        return a

    def observation(self, data: Dataset, conditions: Conditions, draw: Draw) -> Observation | None:
        """Return what is seen of each particle, if that is an orthogonal projection on random samples."""
        answer = self._call("observation", data, conditions, draw)
        if answer is None:
            return None
        if not isinstance(answer, Observation):
            raise self._fault("observation", "None or an Observation", type(answer).__name__)
        if self.amplifier != 1 and not answer.shared:
            raise DataError(f"{self.owner}: an amplifier other than 1 needs one observation for all particles")
        count = FEW if answer.shared else len(conditions)
        self._check_orthogonal(answer, draw.normal(data.space.dimension, count))
        self._check_origin(conditions, data)
        return answer

    def _check_orthogonal(self, observation: Observation, x: Tensor) -> None:
        method, right = "observation", "an orthogonal projection"
        with calling(self.owner, method):
            seen, free, picture = observation.seen(x), observation.free(x), observation.shown(x)
            again = observation.seen(seen)
        for part in (seen, free, picture, again):
            self._like(part, method, x)
        x, seen, free, again = (part[:, :FEW] for part in (x, seen, free, again))
        if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in ((again, seen), (seen + free, x))):
            raise self._fault(method, right, "one that changes what it has projected")
        if bool(((seen * free).sum(dim=0).abs() > 1e-3 * (x * x).sum(dim=0)).any()):
            raise self._fault(method, right, "one whose two parts are not at right angles")

    def _check_origin(self, conditions: Conditions, data: Dataset) -> None:
        """Refuse an observation without samples that are seen."""
        origin, held_out = conditions.origin, 0 if data.held_out is None else len(data.held_out)
        if origin is None:
            raise self._fault("draw", "the origin of every particle's observation", "none")
        lowest, highest = int(origin.min()), int(origin.max())
        if lowest < -held_out or highest >= len(data):
            expected = f"origins from {-held_out} to {len(data) - 1}"
            raise self._fault("draw", expected, f"{lowest} … {highest}")

    def balance(self, data: Dataset, draw: Draw) -> Tensor | None:
        """Return which data to flow to; None: all of them."""
        answer, N = self._call("balance", data, draw), len(data)
        if answer is None:
            return None
        if not isinstance(answer, Tensor) or answer.dtype != torch.int64 or answer.ndim != 1 or not len(answer):
            got = (
                f"{tuple(answer.shape)} of {short(answer.dtype)}"
                if isinstance(answer, Tensor)
                else repr(answer)
            )
            raise self._fault("balance", "None or indices of data (int64)", got)
        if int(answer.min()) < 0 or int(answer.max()) >= N:
            got = f"{int(answer.min())} … {int(answer.max())}"
            raise self._fault("balance", f"indices from 0 to {N - 1}", got)
        return answer

    def groups(self, conditions: Conditions) -> tuple[Tensor, Conditions] | None:
        """Return the group of each sample, in few bits, and the condition of each group; None: too many."""
        answer, n = self._call("groups", conditions), len(conditions)
        if answer is None:
            return None
        expected = f"a whole number for each of {n} samples, and a Conditions with one for each number"
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Conditions)):
            raise self._fault("groups", expected, type(answer).__name__)
        index, classes = answer
        kinds = (torch.uint8, torch.int16, torch.int32, torch.int64)
        if not isinstance(index, Tensor) or index.dtype not in kinds or tuple(index.shape) != (n,):
            raise self._fault("groups", expected, f"{getattr(index, 'shape', type(index).__name__)}")
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < len(classes):
            got = f"numbers up to {int(index.max())} and {len(classes)} conditions"
            raise self._fault("groups", expected, got)
        return index.to(torch.uint8 if len(classes) <= 256 else torch.int32), classes

    def strata(
        self, particles: Conditions, data: Conditions, *, sizes: tuple[int, int] | None = None
    ) -> list[Stratum] | None:
        """Return groups that flow apart from each other, each particle in exactly one; None: one flow.

        `sizes` are M and N, where the plugin may have Y itself, and conditions nothing to count.
        """
        M, N = (len(particles), len(data)) if sizes is None else sizes
        answer = self._call("strata", particles, data)
        if answer is None:
            return None
        if not isinstance(answer, list) or not answer:
            raise self._fault("strata", "None or a list of pairs", repr(type(answer)))
        covered = torch.cat([own for own, _ in answer])
        if not torch.equal(covered.sort().values.cpu(), torch.arange(M)):
            raise self._fault("strata", f"each of {M} particles exactly once", f"{len(covered)} indices")
        for own, theirs in answer:
            if len(theirs) == 0 or int(theirs.max()) >= N:
                raise DataError(f"{self.owner}: {len(own)} particles ask for a condition that no data have")
        return answer


class CheckedSchedule(Adapter, Schedule):
    """A schedule whose stages can be run."""

    def __init__(self, plugin: Schedule, owner: Owner) -> None:
        self._adapt(plugin, owner)
        self.adaptive = plugin.adaptive

    def stages(self, space: Space, projection: ProjectionSampler) -> tuple[Stage, ...]:
        """Return the stages for data in `space`, in order."""
        assert isinstance(projection, CheckedSampler)
        stages = self._call("stages", space, projection.plugin)
        if not isinstance(stages, (list, tuple)) or not all(isinstance(stage, Stage) for stage in stages):
            raise self._fault("stages", "a list of Stage", type(stages).__name__)
        if not stages:
            raise self._fault("stages", "at least one Stage", "an empty list")
        for index, stage in enumerate(stages):
            self._check_stage(stage, index)
        return tuple(stages)

    def _check_stage(self, stage: Stage, index: int) -> None:
        whole = isinstance(stage.steps, int) and isinstance(stage.directions, int)
        numbers = isinstance(stage.step_size, (int, float)) and isinstance(stage.entropy, (int, float))
        fine = whole and numbers and stage.steps >= 0 and stage.directions >= 1 and stage.entropy >= 0
        if not (fine and math.isfinite(stage.step_size)):
            expected = "stages with whole numbers steps ≥ 0 and directions ≥ 1, finite step_size, entropy ≥ 0"
            raise self._fault("stages", expected, f"stage {index}: {stage}")

    def stop(self, stage: Stage, distances: Sequence[float]) -> bool:
        """Say whether to leave the stage early."""
        return bool(self._call("stop", stage, distances))
