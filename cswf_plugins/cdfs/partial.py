"""Base of estimators that can be fitted to a part of the particles or data, as in the paper's Appendix C.2."""

from __future__ import annotations

import attrs

from cswf_core.interfaces import CDFEstimator, Part, parameter


@attrs.frozen(kw_only=True)
class PartialFit(CDFEstimator):
    """An estimator that says how many particles and data it is fitted to; the engine draws these."""

    particles: Part | None = parameter(
        "the particles that F_p is fitted to: {share: 0.1} or {count: 50000} of them, drawn anew at every "
        "step; all if left out",
        default=None,
    )
    data: Part | None = parameter("the data that F_q is fitted to, likewise; all if left out", default=None)
