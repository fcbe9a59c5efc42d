"""Learning as data come: exact counts of the data along directions that stay."""

from cswf_core.online.counts import Counts
from cswf_core.online.learner import Online, OnlineLearner, as_dataset

__all__ = ["Counts", "Online", "OnlineLearner", "as_dataset"]
