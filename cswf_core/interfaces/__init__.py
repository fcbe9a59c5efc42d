"""The contracts: everything a plugin implements or is handed, one file for each kind."""

from cswf_core.interfaces.cdf import CDFEstimator, FittedCDF, Part, Rows, TransportMap
from cswf_core.interfaces.condition import ConditionEncoder, Masked, Observation, Stratum
from cswf_core.interfaces.contract import NeededFiles, Owner, Size, Written, parameter
from cswf_core.interfaces.coordinates import Coordinates, LinearMap
from cswf_core.interfaces.dataset import (
    BIN,
    Conditions,
    Dataset,
    DatasetSource,
    Dequantise,
    StoredImages,
    StoredPixels,
)
from cswf_core.interfaces.draw import Draw, Key
from cswf_core.interfaces.metric import Comparison, Figure, Meaning, Metric, Result, Spread, Workbench
from cswf_core.interfaces.observer import Observer
from cswf_core.interfaces.projection import (
    DenseProjection,
    NonlinearProjection,
    PatchProjection,
    Projection,
    ProjectionSampler,
    ProjectionWrapper,
)
from cswf_core.interfaces.schedule import Schedule, Stage, Upsampling
from cswf_core.interfaces.space import Space

__all__ = [
    "BIN",
    "CDFEstimator",
    "Comparison",
    "ConditionEncoder",
    "Conditions",
    "Coordinates",
    "Dataset",
    "DatasetSource",
    "DenseProjection",
    "Dequantise",
    "Draw",
    "Figure",
    "FittedCDF",
    "Key",
    "LinearMap",
    "Masked",
    "Meaning",
    "Metric",
    "NeededFiles",
    "NonlinearProjection",
    "Observation",
    "Observer",
    "Owner",
    "Part",
    "PatchProjection",
    "Projection",
    "ProjectionSampler",
    "ProjectionWrapper",
    "Result",
    "Rows",
    "Schedule",
    "Size",
    "Space",
    "Spread",
    "Stage",
    "StoredImages",
    "StoredPixels",
    "Stratum",
    "TransportMap",
    "Upsampling",
    "Workbench",
    "Written",
    "parameter",
]
