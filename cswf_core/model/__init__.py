"""The saved model: the maps of a run's steps on disk, and samples drawn from them later.

`format` has the files, `writer` saves them during a run, and `model` loads them; a `Model` answers `requests`
for labels or vectors by `sampling`, which takes new particles through the saved maps.
"""

from cswf_core.model.model import Model, load_model

__all__ = ["Model", "load_model"]
