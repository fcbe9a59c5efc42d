"""As many images as you like, packed: to try data that memory does not hold.

    python examples/many_images.py two-million --count 2000000 --side 8
    cswf run digits data='{use: packed, path: two-million}' --memory-limit 1GB

An image is a sum of smooth waves with random weights, in ten classes that differ in their mean. Images are made
block by block, each block from a key of its own: neither this program nor the flow has them all in memory.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
from pathlib import Path

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import BIN, Key, Space, StoredImages
from cswf_core.packed import pack
from cswf_core.runs.screen import WorkProgress

CLASSES = 10
BLOCK = 4096
"""Images that share a key."""
WAVES = 4
"""Waves up and down, and as many across."""


@attrs.frozen(eq=False, kw_only=True)
class Waves(StoredImages):
    """Images that are made when they are asked for."""

    waves: Tensor = attrs.field(repr=False)
    """WAVES²×(H·W)."""

    @classmethod
    def of(cls, count: int, side: int) -> Waves:
        """Return `count` images of side×side pixels in three colours."""
        places = (torch.arange(side) + 0.5) * math.pi / side
        lines = torch.stack([torch.cos(number * places) / (1 + number) for number in range(WAVES)])
        waves = (lines[:, None, :, None] * lines[None, :, None, :]).reshape(WAVES**2, side * side)
        return cls(
            count=count,
            space=Space((3, side, side)),
            labels=torch.arange(count) % CLASSES,
            classes=tuple(map(str, range(CLASSES))),
            bin_width=BIN,
            waves=waves,
        )

    def fill(self, first: int, out: Tensor) -> None:
        """Make the images from number `first` on, in `out`."""
        means = Key(0, "means").open().normal(CLASSES, 3, WAVES**2)
        done = 0
        while done < len(out):
            block, inside = divmod(first + done, BLOCK)
            weights = 0.5 * Key(0, "weights", index=block).open().normal(BLOCK, 3, WAVES**2)
            weights += means[torch.arange(block * BLOCK, (block + 1) * BLOCK) % CLASSES]
            some = weights[inside : inside + len(out) - done]
            levels = (some @ self.waves).mul_(32).add_(128).clamp_(0, 255)
            out[done : done + len(some)] = levels.view(len(some), *self.space.shape).to(torch.uint8)
            done += len(some)


def main() -> None:
    """Pack the images and say how much memory that took."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=2_000_000)
    parser.add_argument("--side", type=int, default=8)
    wanted = parser.parse_args()
    images, progress = Waves.of(wanted.count, wanted.side), WorkProgress(silent=not sys.stderr.isatty())
    source = {"use": "examples/many_images.py", "count": wanted.count, "side": wanted.side}
    manifest = pack(images, wanted.folder, source=source, seed=0, per_shard=200_000, tell=progress.tell)
    progress.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{wanted.folder}: {wanted.count:,} images, {manifest.bytes / 1e9:.3g} GB; {peak:.2f} GB of memory")


if __name__ == "__main__":
    main()
