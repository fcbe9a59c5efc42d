"""The classifier of metric `class-accuracy`: a small convolutional network and its training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from cswf_core.interfaces import Dataset, Draw

SMALLEST_SIDE = 4
LONGEST_SIDE = 32
"""Pixels after the first layer, about; larger images are made smaller there."""
PEAK = 0.01
"""The longest step of the optimiser, which comes when RISE of all steps are done."""
RISE = 0.3
SMOOTHING = 0.1
"""Share of a label that is spread over all classes, so that the network does not get too sure."""
BATCH = 1000
"""Images that are classified at once."""


@attrs.frozen
class Variation:
    """How images differ each time the network sees them."""

    rows: int = 0
    """Pixels by which they are moved up or down, at most."""
    columns: int = 0
    mirrored: bool = False
    """Whether half of them are mirror images."""

    @classmethod
    def of(cls, data: Dataset, mirrored: bool) -> Variation:
        """Return what suits the data: all of it for photographs; a letter may not be mirrored, nor a digit.

        `mirrored`: the flow has seen mirror images, so that they may be shown here too.
        """
        channels, height, width = data.space.shape
        photographs = channels == 3
        moved = (height // 8, width // 8) if photographs else (0, 0)
        return cls(*moved, mirrored=photographs or mirrored)

    def apply(self, images: Tensor, draw: Draw) -> Tensor:
        """Return images moved and mirrored, each in its own way: n×C×H×W."""
        count, _, height, width = images.shape
        if not (self.rows or self.columns or self.mirrored):
            return images
        padded = functional.pad(images, (self.columns, self.columns, self.rows, self.rows))
        down, along = (torch.arange(size, device=images.device).repeat(count, 1) for size in (height, width))
        if self.mirrored:
            along = torch.where(draw.uniform(count, 1) < 0.5, along.flip(1), along)
        down = down + draw.integers(2 * self.rows + 1, count, 1)
        along = along + draw.integers(2 * self.columns + 1, count, 1)
        each = torch.arange(count, device=images.device)[:, None, None]
        return padded[each, :, down[:, :, None], along[:, None, :]].permute(0, 3, 1, 2).contiguous()


class Classifier(nn.Module):
    """Convolutions, each with batch normalisation, and halvings of the image; then the largest value of all.

    Wider for colour, narrower for small images, so that those take little time.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, draw: Draw) -> None:
        """`shape` is C×H×W; the weights are drawn from `draw`, and live on its device."""
        super().__init__()
        channels, *sides = shape
        stride = max(1, min(sides) // LONGEST_SIDE)
        side = min(sides) // stride
        wide = (32 if channels == 3 else 16) // (1 if side > 16 else 2)
        most = 4 * wide
        with torch.device("meta"):  # elsewhere, making layers draws from the global generator
            layers: list[nn.Module] = [ConvolutionLayer(channels, wide, stride + 2, stride)]
            while side >= 2 * SMALLEST_SIDE:
                # Windows do not overlap, so that the gradient of their largest values is repeatable.
                wider = min(2 * wide, most)
                layers += [ConvolutionLayer(wide, wider), nn.MaxPool2d(2)]
                wide, side = wider, side // 2
            self.layers = nn.Sequential(*layers, Residual(wide))
            self.last = nn.Linear(wide, classes)
        self.to_empty(device=draw.device).float()
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.reset_parameters()
        with torch.no_grad():
            for weight in self.parameters():
                if weight.ndim > 1:
                    weight.copy_(draw.normal(*weight.shape) * (2 / weight[0].numel()) ** 0.5)
            self.last.weight.mul_(0.1)
            self.last.bias.zero_()
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return a number for each class, the larger the likelier; images are n×C×H×W within about ±2."""
        logits: Tensor = self.last(self.layers(images).amax(dim=(2, 3)))
        return logits

    def learn(
        self, images: Tensor, labels: Tensor, varied: Variation, steps: int, batch: int, draw: Draw
    ) -> Iterator[int]:
        """Learn from bytes, n×C×H×W, and yield the number of steps done after each."""
        images, labels = images.to(draw.device), labels.to(draw.device)
        optimizer = torch.optim.AdamW(self.parameters(), lr=PEAK, weight_decay=0.01)
        self.train()
        order = torch.empty(0, dtype=torch.long)
        for step in range(steps):
            if len(order) < batch:
                order = torch.from_numpy(draw.host.permutation(len(images))).to(draw.device)
            chosen, order = order[:batch], order[batch:]
            share = (step + 1) / (steps + 1)
            optimizer.param_groups[0]["lr"] = PEAK * min(share / RISE, (1 - share) / (1 - RISE))
            guessed = self(varied.apply(_scaled(images[chosen]), draw))
            optimizer.zero_grad()
            loss = functional.cross_entropy(guessed, labels[chosen], label_smoothing=SMOOTHING)
            torch.autograd.backward(loss)
            optimizer.step()
            yield step + 1
        self.eval()

    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        """Return the share of images, n×C×H×W bytes, that are taken for what their labels say."""
        device, right = self.last.weight.device, 0
        with torch.no_grad(), repeatable():
            for first in range(0, len(images), BATCH):
                guessed = self(_scaled(images[first : first + BATCH].to(device)))
                right += int((guessed.argmax(dim=1).cpu() == labels[first : first + BATCH]).sum())
        return right / len(images)


class ConvolutionLayer(nn.Sequential):
    """A convolution, batch normalisation, and what is negative set to 0."""

    def __init__(self, before: int, after: int, size: int = 3, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(before, after, size, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
        )


class Residual(nn.Module):
    """Two convolutions whose result is added to what they were given."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(ConvolutionLayer(wide, wide), ConvolutionLayer(wide, wide))

    def forward(self, x: Tensor) -> Tensor:
        """Return x + f(x): n×C×H×W."""
        added: Tensor = x + self.inner(x)
        return added


def _scaled(images: Tensor) -> Tensor:
    return (images.float() - 127.5) / 64


def repeatable() -> AbstractContextManager[None]:
    """Let convolutions give the same numbers twice."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True)
