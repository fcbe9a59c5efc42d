"""Data `mnist`: handwritten digits, 28×28 grey pixels, 60,000 to see and 10,000 held out.

What it is: LeCun, Cortes and Burges' data set, from its own idx files, gzipped or not.
Cost: 11 MB to download, once; 188 MB of memory in float32.
When not to use it: to try something out; `digits` needs no download and is 40 times smaller.
"""

from __future__ import annotations

import attrs

from cswf_plugins.datasets.idx import IdxImages
from cswf_plugins.references import bibtex


@attrs.frozen(kw_only=True)
class Mnist(IdxImages):
    """Handwritten digits of 28×28 pixels."""

    NAME = "mnist"
    references = bibtex("lecun1998gradient")
    licence = "Yann LeCun and Corinna Cortes hold the copyright of MNIST; it is available under CC BY-SA 3.0."
    FOLDERS = ("mnist", "MNIST/raw")
    TORCHVISION = ("MNIST", "MNIST/raw")
    CLASSES = tuple(str(digit) for digit in range(10))
