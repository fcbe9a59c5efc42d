"""The saved model: the maps of a run's steps on disk, and samples drawn from them later.

`header` and `shards` are the format, `writer` makes it as a run goes, `offline` takes new particles through
it, and `model` is what people load, through `loading`.
"""

from cswf_core.model.loading import load_model
from cswf_core.model.model import Model

__all__ = ["Model", "load_model"]
