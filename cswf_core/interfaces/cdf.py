"""Contract of CDF estimators: H one-dimensional distributions at a time, one per row."""

from __future__ import annotations

import abc

import attrs
from torch import Tensor

from cswf_core.interfaces.contract import Contract, parameter
from cswf_core.kernels.rows import Rows as Rows  # a contract too: what `fit_rows` gets


@attrs.frozen(kw_only=True)
class Part:
    """A random part of the particles or data, drawn anew at every step."""

    share: float | None = parameter("how large a share of all", default=None, above=0, at_most=1)
    count: int | None = parameter("how many", default=None, at_least=2)

    def __attrs_post_init__(self) -> None:
        """Refuse a part that says both or neither."""
        if (self.share is None) == (self.count is None):
            raise ValueError("a part is {share: …} or {count: …}, one of the two")

    def of(self, count: int) -> int:
        """Return how many of `count` samples belong to the part: at least 2, if there are 2."""
        wanted = round(self.share * count) if self.share is not None else self.count or 0
        return min(max(wanted, 2), count)


class FittedCDF(abc.ABC):
    """H estimated distributions F_1 … F_H."""

    @abc.abstractmethod
    def cdf(self, z: Tensor) -> Tensor:
        """Return F_h(z) in [0, 1] for every entry of row h: H×m → H×m."""

    @abc.abstractmethod
    def icdf(self, a: Tensor) -> Tensor:
        """Return F_h⁻¹(a) for every entry of row h, a in [0, 1]: H×m → H×m."""


class TransportMap(abc.ABC):
    """T_h = F_q⁻¹∘F_p for H directions, composed once and cheap to apply."""

    @abc.abstractmethod
    def displace(self, rows: Rows) -> Tensor:
        """Replace the values p by δ = T(p) − p, in place, and return the sum of δ² of each row: H.

        Rows may have other values than F_p was fitted to, also beyond these: such a value goes where the
        nearest end goes.
        """


class CDFEstimator(Contract):
    """Fits distributions to samples. Subclasses are attrs classes whose fields are the parameters.

    Only `fit` has no default. `fit_rows`, `between` and `displace` are for estimators that can read values as
    they leave the projection, in half precision and with the offsets of labels beside them; such an estimator
    declares `displaces`. On CUDA its work may be captured as a CUDA graph, so it must not look at
    numbers on the host.
    """

    displaces: bool = False
    """Whether `displace` or `between` is overridden: then rows are displaced where they are, and no
    memory of their size is needed. Otherwise the engine calls `transport`."""
    compact: bool = False
    """Whether a fit is much smaller than the values: then F_q is kept as long as its directions."""
    extrapolates: bool = False
    """Whether maps made by `between` differ from F_q⁻¹∘F_p, as straight lines in the tails do: the kit then
    does not compare them."""
    particles: Part | None = None
    """The part of the particles that F_p is fitted to; None: all. The engine draws it, and moves them all."""
    data: Part | None = None
    """The part of the data that F_q is fitted to; None: all."""
    bins: int | None = None
    """B, if distributions can be made of counts in B equal bins, as online learning and flows on several
    devices like best; see `of_counts`."""

    @abc.abstractmethod
    def fit(self, values: Tensor) -> FittedCDF:
        """Fit one distribution to each row of `values` (H×n)."""

    def transport(self, p: Tensor, data: FittedCDF) -> Tensor:
        """Return F_q⁻¹(F_p(p)), the one-dimensional optimal transport map at p: H×M → H×M. F_q is `data`.

        The default composes `fit`, `cdf` and `icdf`; override it where something else is cheaper.
        """
        return data.icdf(self.fit(p).cdf(p))

    def fit_rows(self, rows: Rows) -> FittedCDF:
        """Fit one distribution to each row, with all that is added to its values."""
        return self.fit(rows.read())

    def of_counts(
        self, below: Tensor, count: int, low: Tensor, high: Tensor, *, half: bool = False
    ) -> FittedCDF:
        """Return the distributions of `count` values, of which `below` (H×(B+1), int32) lie below the edges.

        The edges of a row are equally far from each other, from `low` to `high` (H each). For estimators with
        `bins`: they can learn online, where the values themselves are gone, and fit values of which several
        devices have some each, whose counts are summed. `half` says that values were in half precision, so
        that what is made of them need not be better.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be made of counts")

    def between(self, p: FittedCDF, data: FittedCDF) -> TransportMap | None:
        """Return the map from the particles' distributions to the data's; None, the usual: use `transport`."""
        del p, data
        return None

    def displace(self, rows: Rows, data: FittedCDF) -> Tensor:
        """Replace p by δ = F_q⁻¹(F_p(p)) − p, in place, and return the sum of δ² of each row: H.

        The default is `fit_rows` and `between`; override it where doing both at once is cheaper.
        """
        through = self.between(self.fit_rows(rows), data)
        if through is None:
            raise TypeError("`between` returned None; an estimator that overrides it returns a TransportMap")
        return through.displace(rows)
