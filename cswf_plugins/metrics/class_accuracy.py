"""Metric `class-accuracy`: how many samples are of the class that was asked for, as a small network sees it.

What it is: a convolutional network learns the classes from the training images, then names the class of every
generated image. `class_accuracy_real` is how often it is right about real images that it has not seen, the
ceiling: a higher `class_accuracy` means samples that are easier to tell than real images, not better ones.
Cost: the training: for CIFAR-10 twelve seconds on an H200, where it is right about 86 % of the held-out images;
on a CPU core minutes for MNIST, and seconds for `digits`.
When not to use it: as the only score. Samples that are all alike in each class get full marks, and so may
images that nobody would take for real.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Draw, Meaning, Metric, Result, Workbench, parameter
from cswf_plugins.metrics.inception import Numbers, labels_of, share_spread

SMALLEST_SIDE = 4
PEAK = 0.01
"""The longest step of the optimiser, which comes when RISE of all steps are done."""
RISE = 0.3
PASSES = 30
"""How often an image is shown at most: small sets need fewer steps."""


@attrs.frozen(kw_only=True)
class ClassAccuracy(Metric):
    """Share of samples that a classifier takes for what they were asked to be."""

    better = "higher"
    once = True

    steps: int = parameter(
        f"steps of the classifier's training, at most; no image is shown more than {PASSES} times",
        default=1000,
        at_least=1,
    )
    batch: int = parameter("images in such a step", default=256, at_least=2)

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Look for images and for labels."""
        del bench
        _, height, width = data.space.grid("metric 'class-accuracy'")
        if min(height, width) < SMALLEST_SIDE:
            raise DataError(f"metric 'class-accuracy' needs images of {SMALLEST_SIDE} pixels, got {data.space}")
        labels_of(data, "class-accuracy", "the data")

    def compute(self, comparison: Comparison) -> Result:
        """Return `class_accuracy` and, for real images, `class_accuracy_real`."""
        generated = comparison.generated
        training = comparison.training
        bench = comparison.bench
        wanted = labels_of(generated, "class-accuracy", "the generated samples")
        if training is None:
            raise DataError("metric 'class-accuracy' needs the training images, and they are not known")
        self.check(training, bench)
        key = ("classifier", training, comparison.held_out, self, comparison.draw.key)
        network, real, unseen, words = bench.keep(key, lambda: self._trained(comparison, training))
        score = network.accuracy(bench.images(generated), wanted)
        protocol = (
            "share of samples that a small convolutional network takes for the class that was asked for; "
            f"{words}, the ceiling"
        )
        notes = []
        if real < 0.7:
            notes.append(
                f"class_accuracy: the classifier is right about only {real:.0%} of real images, "
                "so that it says little about generated ones; more steps may help"
            )
        recognised = Meaning(
            "Share of generated images that a classifier takes for the class that was asked for.",
            aspect="condition",
            share=True,
        )
        ceiling = Meaning(
            "How often the same classifier is right about real images that it has not seen, the ceiling.",
            aspect="condition",
            share=True,
            of_samples=False,
        )
        numbers = Numbers()
        numbers.add("class_accuracy", score, recognised, share_spread(score, len(generated)))
        numbers.add("class_accuracy_real", real, ceiling, share_spread(real, unseen), count=unseen)
        return numbers.result(protocol, notes)

    def _trained(self, comparison: Comparison, training: Dataset) -> tuple[Classifier, float, int, str]:
        """Return a network that has learnt the classes, and how it was trained, in words for the protocol.

        Between the two, the share of real images it has not seen that it gets right, and how many these are.
        """
        bench = comparison.bench
        held_out = comparison.held_out
        # A stream of its own: what else has been drawn does not change the network.
        key = attrs.evolve(comparison.draw.key, role=f"{comparison.draw.key.role}/classifier")
        draw = key.open(comparison.draw.device)
        images = bench.images(training)
        labels = labels_of(training, "class-accuracy", "the training images")
        if held_out is not None and held_out.conditions.labels is not None:
            unseen = bench.images(held_out)
            right = held_out.conditions.labels.cpu()
            which = "held-out ones"
        else:
            order = torch.from_numpy(draw.host.permutation(len(images)))
            apart = order[: max(1, len(images) // 10)]
            unseen = images[apart]
            right = labels[apart]
            which = "that were kept apart"
            images = images[order[len(apart) :]]
            labels = labels[order[len(apart) :]]
        if not len(images):
            raise DataError("metric 'class-accuracy' needs at least two training images")
        batch = min(self.batch, len(images))
        steps = min(self.steps, math.ceil(PASSES * len(images) / batch))
        varied = Variation.of(training, mirrored=comparison.mirrored is not None)
        with _repeatable(), torch.inference_mode(False), torch.enable_grad():  # whatever the caller's mode
            network = Classifier(training.space.shape, max(len(training.classes), 1 + int(labels.max())), draw)
            for done in network.learn(images, labels, varied, steps, batch, draw):
                bench.tell("training a classifier", done, steps)
        words = (
            f"trained on {len(images):,} real images in {steps:,} steps of {batch}; class_accuracy_real: its "
            f"accuracy on {len(unseen):,} {which}"
        )
        return network, network.accuracy(unseen, right), len(unseen), words


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
        padded = torch.nn.functional.pad(images, (self.columns, self.columns, self.rows, self.rows))
        down, along = (torch.arange(size, device=images.device).repeat(count, 1) for size in (height, width))
        if self.mirrored:
            along = torch.where(draw.uniform(count, 1) < 0.5, along.flip(1), along)
        down = down + draw.integers(2 * self.rows + 1, count, 1)
        along = along + draw.integers(2 * self.columns + 1, count, 1)
        each = torch.arange(count, device=images.device)[:, None, None]
        return padded[each, :, down[:, :, None], along[:, None, :]].permute(0, 3, 1, 2).contiguous()


class Classifier:
    """Convolutions, each with batch normalisation, and halvings of the image; then the largest value of all.

    Wider for colour, narrower for small images, so that those take little time.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, draw: Draw) -> None:
        """`shape` is C×H×W; the weights are drawn from `draw`, and live on its device."""
        nn = torch.nn
        channels, *sides = shape
        stride = max(1, min(sides) // 32)  # larger images are made smaller in the first layer
        side = min(sides) // stride
        wide = (32 if channels == 3 else 16) // (1 if side > 16 else 2)
        most = 4 * wide
        with torch.device("meta"):  # elsewhere, making layers draws from the global generator
            layers = _layer(channels, wide, stride + 2, stride)
            while side >= 2 * SMALLEST_SIDE:
                # Windows do not overlap, so that the gradient of their largest values is repeatable.
                wider = min(2 * wide, most)
                layers += [*_layer(wide, wider), nn.MaxPool2d(2)]
                wide = wider
                side //= 2
            self.layers = nn.Sequential(*layers)
            self.residual = nn.Sequential(*_layer(wide, wide), *_layer(wide, wide))
            self.last = nn.Linear(wide, classes)
        self.parts = nn.ModuleList([self.layers, self.residual, self.last])
        self.parts.to_empty(device=draw.device).float()
        for part in self.parts.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.reset_parameters()
        with torch.no_grad():
            for weight in self.parts.parameters():
                if weight.ndim > 1:
                    weight.copy_(draw.normal(*weight.shape) * (2 / weight[0].numel()) ** 0.5)
            self.last.weight.mul_(0.1)
            self.last.bias.zero_()
        self.parts.eval()

    def _logits(self, images: Tensor) -> Tensor:
        """Return a number for each class, the larger the likelier; images are n×C×H×W within about ±2."""
        x = self.layers(images)
        logits: Tensor = self.last((x + self.residual(x)).amax(dim=(2, 3)))
        return logits

    def learn(
        self, images: Tensor, labels: Tensor, varied: Variation, steps: int, batch: int, draw: Draw
    ) -> Iterator[int]:
        """Learn from bytes, n×C×H×W, and yield the number of steps done after each."""
        images = images.to(draw.device)
        labels = labels.to(draw.device)
        optimizer = torch.optim.AdamW(self.parts.parameters(), lr=PEAK, weight_decay=0.01)
        self.parts.train()
        order = torch.empty(0, dtype=torch.long)
        for step in range(steps):
            if len(order) < batch:
                order = torch.from_numpy(draw.host.permutation(len(images))).to(draw.device)
            chosen = order[:batch]
            order = order[batch:]
            share = (step + 1) / (steps + 1)
            optimizer.param_groups[0]["lr"] = PEAK * min(share / RISE, (1 - share) / (1 - RISE))
            guessed = self._logits(varied.apply(_scaled(images[chosen]), draw))
            optimizer.zero_grad()
            # Some of a label is spread over all classes, so that the network does not get too sure.
            loss = torch.nn.functional.cross_entropy(guessed, labels[chosen], label_smoothing=0.1)
            torch.autograd.backward(loss)
            optimizer.step()
            yield step + 1
        self.parts.eval()

    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        """Return the share of images, n×C×H×W bytes, that are taken for what their labels say."""
        right = 0
        with torch.no_grad(), _repeatable():
            for some, theirs in zip(torch.split(images, 1000), torch.split(labels, 1000), strict=True):
                guessed = self._logits(_scaled(some.to(self.last.weight.device)))
                right += int((guessed.argmax(dim=1).cpu() == theirs).sum())
        return right / len(images)


def _layer(before: int, after: int, size: int = 3, stride: int = 1) -> list[torch.nn.Module]:
    """Return a convolution, batch normalisation, and what sets negative values to 0."""
    nn = torch.nn
    convolution = nn.Conv2d(before, after, size, stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(after), nn.ReLU()]


def _scaled(images: Tensor) -> Tensor:
    return (images.float() - 127.5) / 64


def _repeatable() -> AbstractContextManager[None]:
    """Let convolutions give the same numbers twice."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True)
