"""Data `fashion-mnist`: pictures of clothes, 28×28 grey pixels, 60,000 to see and 10,000 held out.

What it is: Xiao, Rasul and Vollgraf's data set, from its own idx files, gzipped or not.
Cost: 30 MB to download, once; 188 MB of memory in float32.
When not to use it: for colours; `cifar10` has them.
"""

from __future__ import annotations

import attrs

from cswf_plugins.datasets.mnist import IdxImages
from cswf_plugins.references import bibtex


@attrs.frozen(kw_only=True)
class FashionMnist(IdxImages):
    """Pictures of clothes, shoes and bags of 28×28 pixels."""

    NAME = "fashion-mnist"
    references = bibtex("xiao2017fashion")
    licence = "Fashion-MNIST is by Zalando SE, under the MIT licence."
    FOLDERS = ("fashion-mnist", "FashionMNIST/raw")
    TORCHVISION = ("FashionMNIST", "FashionMNIST/raw")
    CLASSES = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
