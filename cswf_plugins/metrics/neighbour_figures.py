"""Figures of samples beside the training images nearest to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cswf_core.interfaces import Dataset, Figure
from cswf_plugins.metrics.neighbour_search import ImageChoice, Neighbours

ROWS = 10
"""Samples in a figure, at most."""


def neighbour_figures(
    generated: Dataset,
    images: Tensor,
    known: Tensor,
    spaces: Sequence[Neighbours],
    choice: ImageChoice,
    called: str,
) -> dict[str, Figure]:
    """Return the two figures by name: samples of all classes as they come, and those most like copies.

    `images` (n×C×H×W bytes) are the chosen samples, and `known` the images that neighbours are indices of.
    """
    labels = generated.conditions.labels
    labels = None if labels is None else labels.cpu()[choice.samples]
    names = class_names(labels, generated.classes)
    below = (
        f"Under each sample is its relative distance (to the nearest over the mean to the nearest {choice.k}, "
        f"in {spaces[0].where}; near 0 for a copy), and under each neighbour its distance."
    )
    leads = (
        f"Samples that nobody has chosen, each with the {called} nearest to it. {below}",
        f"The samples with the smallest relative distances, each with the {called} nearest to it. {below}",
    )
    closest = spaces[0].copies.ratios.cpu().argsort(stable=True)[:ROWS]
    return {
        name: _figure(images, known, spaces, rows, names, lead)
        for name, rows, lead in (
            ("nearest-neighbours", rows_of_classes(labels, len(images)), leads[0]),
            ("nearest-of-all", closest, leads[1]),
        )
    }


def rows_of_classes(labels: Tensor | None, count: int) -> Tensor:
    """Return ROWS samples or fewer: as many of each class, classes evenly chosen; without, the first of all."""
    if labels is None:
        return torch.arange(min(ROWS, count))
    classes = torch.unique(labels)
    if len(classes) > ROWS:
        classes = classes[torch.arange(ROWS) * len(classes) // ROWS]
    each = ROWS // len(classes)
    return torch.cat([(labels == label).nonzero()[:each, 0] for label in classes])


def class_names(labels: Tensor | None, classes: Sequence[str]) -> list[str]:
    """Return the name of each sample's class, or its number; nothing where there are no labels."""
    if labels is None:
        return []
    return [classes[label] if 0 <= label < len(classes) else str(label) for label in labels.tolist()]


def _figure(
    images: Tensor, known: Tensor, spaces: Sequence[Neighbours], rows: Tensor, names: Sequence[str], lead: str
) -> Figure:
    """Return rows of a sample and its neighbours in each space."""
    index = [space.index.cpu() for space in spaces]
    ratios = spaces[0].copies.ratios.cpu()
    top, pictures, captions = ["sample"], [], []
    for space, neighbours in zip(spaces, index, strict=True):
        width = neighbours.shape[1]
        top += [f"by {space.where}" if column == width // 2 else "" for column in range(width)]
    for row in rows.tolist():
        pictures.append(torch.cat([images[row, None], *(known[neighbours[row]] for neighbours in index)]))
        distances = torch.cat([space.distances[row].cpu() for space in spaces])
        captions.append([f"{float(ratios[row]):.2f}", *(f"{distance:.3g}" for distance in distances.tolist())])
    left = [names[row] for row in rows.tolist()] if names else []
    return Figure(pictures, top, captions=captions, left=left, lead=lead)
