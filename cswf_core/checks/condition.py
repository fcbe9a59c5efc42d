"""Adapter of conditions: Y of every sample, θ_y, weights, and what is observed."""

from __future__ import annotations

import math

import attrs
import torch
from torch import Tensor

from cswf_core.checks.adapter import Adapter, calling, short
from cswf_core.checks.data import check_conditions
from cswf_core.errors import DataError
from cswf_core.interfaces import ConditionEncoder, Conditions, Dataset, Draw, Observation, Owner, Stratum
from cswf_core.interfaces.dataset import READ

SAMPLES_CHECKED = 64
"""Samples that an observation is checked on."""


class CheckedCondition(Adapter, ConditionEncoder):
    """A condition encoder whose Y, θ_y, weights and observations are what the contract says."""

    def __init__(self, plugin: ConditionEncoder, owner: Owner) -> None:
        super().__init__(plugin, owner)
        amplifier: object = self.amplifier
        if not isinstance(amplifier, (int, float)) or not math.isfinite(amplifier):
            raise self._fault("amplifier", "a finite number ξ", repr(amplifier))
        if self.dequantised and amplifier == 0:
            raise self._fault("dequantised", "False where the amplifier is 0", "True")

    def encode(self, data: Dataset) -> Conditions:
        """Return Y of each sample."""
        return check_conditions(self._call("encode", data), self.owner, "encode", len(data), len(data.classes))

    def encoded(self, data: Dataset) -> Dataset:
        """Return data with the Y that the condition says; held-out ones too."""
        if type(self.plugin).encode is ConditionEncoder.encode:
            return data
        if data.stored is None:
            conditions = self.encode(data)
        else:
            cuts = (slice(first, first + READ) for first in range(0, len(data), READ))
            parts = (attrs.evolve(data.take(cut), x=data.columns(cut)) for cut in cuts)
            conditions = Conditions.joined([self.encode(part) for part in parts])
        held_out = None if data.held_out is None else self.encoded(data.held_out)
        return attrs.evolve(data, conditions=conditions, held_out=held_out)

    def length(self, data: Dataset) -> int:
        """Return l, the dimension of Y."""
        return self._whole(self._call("length", data), "length", 0)

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
        count = SAMPLES_CHECKED if answer.shared else len(conditions)
        self._check_orthogonal(answer, draw.normal(data.space.dimension, count))
        self._check_origin(conditions, data)
        return answer

    def observed_parts(self, observation: Observation, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return O x, P x and O O x: d×n each."""
        with calling(self.owner, "observation"):
            seen = observation.seen(x)
            free = observation.free(x)
            picture = observation.shown(x)
            again = observation.seen(seen)
        for part in (seen, free, picture, again):
            self._like(part, "observation", x)
        return seen, free, again

    def _check_orthogonal(self, observation: Observation, x: Tensor) -> None:
        method = "observation"
        right = "an orthogonal projection"
        parts = self.observed_parts(observation, x)
        x, seen, free, again = (part[:, :SAMPLES_CHECKED] for part in (x, *parts))
        if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in ((again, seen), (seen + free, x))):
            raise self._fault(method, right, "one that changes what it has projected")
        if bool(((seen * free).sum(dim=0).abs() > 1e-3 * (x * x).sum(dim=0)).any()):
            raise self._fault(method, right, "one whose two parts are not at right angles")

    def _check_origin(self, conditions: Conditions, data: Dataset) -> None:
        """Refuse an observation without samples that are seen."""
        origin = conditions.origin
        held_out = 0 if data.held_out is None else len(data.held_out)
        if origin is None:
            raise self._fault("draw", "the origin of every particle's observation", "none")
        lowest = int(origin.min())
        highest = int(origin.max())
        if lowest < -held_out or highest >= len(data):
            expected = f"origins from {-held_out} to {len(data) - 1}"
            raise self._fault("draw", expected, f"{lowest} … {highest}")

    def balance(self, data: Dataset, draw: Draw) -> Tensor | None:
        """Return which data to flow to; None: all of them."""
        answer = self._call("balance", data, draw)
        N = len(data)
        if answer is None:
            return None
        if not isinstance(answer, Tensor) or answer.dtype != torch.int64 or answer.ndim != 1 or not len(answer):
            is_tensor = isinstance(answer, Tensor)
            got = f"{tuple(answer.shape)} of {short(answer.dtype)}" if is_tensor else repr(answer)
            raise self._fault("balance", "None or indices of data (int64)", got)
        if int(answer.min()) < 0 or int(answer.max()) >= N:
            got = f"{int(answer.min())} … {int(answer.max())}"
            raise self._fault("balance", f"indices from 0 to {N - 1}", got)
        return answer

    def groups(self, conditions: Conditions) -> tuple[Tensor, Conditions] | None:
        """Return the group of each sample, in few bits, and the condition of each group; None: too many."""
        answer = self._call("groups", conditions)
        n = len(conditions)
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
        pairs = [pair for pair in answer if isinstance(pair, tuple) and len(pair) == 2]
        tensors = [part for pair in pairs for part in pair if isinstance(part, Tensor)]
        if len(tensors) < 2 * len(answer) or any(part.dtype != torch.int64 for part in tensors):
            raise self._fault("strata", "pairs of indices (int64), of particles and of data", repr(answer)[:60])
        covered = torch.cat([own for own, _ in answer])
        if not torch.equal(covered.sort().values.cpu(), torch.arange(M)):
            raise self._fault("strata", f"each of {M} particles exactly once", f"{len(covered)} indices")
        for own, theirs in answer:
            if len(theirs) and int(theirs.min()) < 0:
                raise self._fault("strata", f"indices of data from 0 to {N - 1}", f"{int(theirs.min())}")
            if len(theirs) == 0 or int(theirs.max()) >= N:
                raise DataError(f"{self.owner}: {len(own)} particles ask for a condition that no data have")
        return answer
