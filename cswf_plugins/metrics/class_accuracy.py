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
from typing import TYPE_CHECKING

import attrs
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Meaning, Metric, Result, Workbench, parameter
from cswf_plugins.metrics.inception import labels_of
from cswf_plugins.metrics.spreads import share_spread

if TYPE_CHECKING:
    from cswf_plugins.metrics.classifier import Classifier

POOR = 0.7
"""Accuracy on real images below which the scores come with a warning."""
PASSES = 30
"""How often an image is shown at most: small sets need fewer steps."""

MEANINGS = {
    "class_accuracy": Meaning(
        "Share of generated images that a classifier takes for the class that was asked for.",
        aspect="condition",
        share=True,
    ),
    "class_accuracy_real": Meaning(
        "How often the same classifier is right about real images that it has not seen, the ceiling.",
        aspect="condition",
        share=True,
        of_samples=False,
    ),
}


@attrs.frozen(eq=False)
class Trained:
    """A network that has learnt the classes."""

    network: Classifier
    accuracy: float
    """The share of real images it has not seen that it gets right."""
    unseen: int
    """How many such images there are."""
    words: str
    """The training of the network, in words for the protocol."""


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
        from cswf_plugins.metrics.classifier import SMALLEST_SIDE

        del bench
        _, height, width = data.space.grid("metric 'class-accuracy'")
        if min(height, width) < SMALLEST_SIDE:
            raise DataError(f"metric 'class-accuracy' needs images of {SMALLEST_SIDE} pixels, got {data.space}")
        labels_of(data, "class-accuracy", "the data")

    def compute(self, comparison: Comparison) -> Result:
        """Return `class_accuracy` and, for real images, `class_accuracy_real`."""
        generated, training, bench = comparison.generated, comparison.training, comparison.bench
        wanted = labels_of(generated, "class-accuracy", "the generated samples")
        if training is None:
            raise DataError("metric 'class-accuracy' needs the training images, and they are not known")
        self.check(training, bench)
        key = ("classifier", training, comparison.held_out, self, comparison.draw.key)
        trained = bench.keep(key, lambda: self._trained(comparison, training))
        score = trained.network.accuracy(bench.images(generated), wanted)
        protocol = (
            "share of samples that a small convolutional network takes for the class that was asked for; "
            f"{trained.words}, the ceiling"
        )
        notes = []
        if trained.accuracy < POOR:
            notes.append(
                f"class_accuracy: the classifier is right about only {trained.accuracy:.0%} of real images, "
                "so that it says little about generated ones; more steps may help"
            )
        return Result(
            {"class_accuracy": score, "class_accuracy_real": trained.accuracy},
            protocol,
            notes,
            counts={"class_accuracy_real": trained.unseen},
            spreads={
                "class_accuracy": share_spread(score, len(generated)),
                "class_accuracy_real": share_spread(trained.accuracy, trained.unseen),
            },
            meanings=MEANINGS,
        )

    def _trained(self, comparison: Comparison, training: Dataset) -> Trained:
        # Its layers are classes of PyTorch's, which need not be imported to read a recipe.
        from cswf_plugins.metrics.classifier import Classifier, Variation, repeatable

        bench, held_out = comparison.bench, comparison.held_out
        # A stream of its own: what else has been drawn does not change the network.
        key = attrs.evolve(comparison.draw.key, role=f"{comparison.draw.key.role}/classifier")
        draw = key.open(comparison.draw.device)
        images, labels = bench.images(training), labels_of(training, "class-accuracy", "the training images")
        if held_out is not None and held_out.conditions.labels is not None:
            unseen, right, which = bench.images(held_out), held_out.conditions.labels.cpu(), "held-out ones"
        else:
            order = torch.from_numpy(draw.host.permutation(len(images)))
            apart = order[: max(1, len(images) // 10)]
            unseen, right, which = images[apart], labels[apart], "that were kept apart"
            images, labels = images[order[len(apart) :]], labels[order[len(apart) :]]
        if not len(images):
            raise DataError("metric 'class-accuracy' needs at least two training images")
        batch = min(self.batch, len(images))
        steps = min(self.steps, math.ceil(PASSES * len(images) / batch))
        varied = Variation.of(training, mirrored=comparison.mirrored is not None)
        with repeatable(), torch.inference_mode(False), torch.enable_grad():  # whatever the caller's mode
            network = Classifier(training.space.shape, max(len(training.classes), 1 + int(labels.max())), draw)
            for done in network.learn(images, labels, varied, steps, batch, draw):
                bench.tell("training a classifier", done, steps)
        words = (
            f"trained on {len(images):,} real images in {steps:,} steps of {batch}; class_accuracy_real: its "
            f"accuracy on {len(unseen):,} {which}"
        )
        return Trained(network, network.accuracy(unseen, right), len(unseen), words)
