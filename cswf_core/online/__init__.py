"""Learning as data come: flows to exact counts of the data along directions that stay."""

from cswf_core.online.counts import Counts
from cswf_core.online.flow import OnlineFlow, as_dataset, planned_data

__all__ = ["Counts", "OnlineFlow", "as_dataset", "planned_data"]
