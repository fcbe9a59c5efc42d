"""What scores mean whose files do not say so: those of earlier versions, guessed by their names."""

from __future__ import annotations

import attrs

from cswf_core.scores.document import Score, ScoreDocument


@attrs.frozen
class Guess:
    """What a score is about, if its name begins so."""

    aspect: str
    share: bool = False


BY_NAME = {
    "copied": Guess("copying", share=True),
    "closer": Guess("copying", share=True),
    "nearest": Guess("copying"),
    "near": Guess("copying", share=True),
    "smallest": Guess("copying"),
    "class_accuracy": Guess("condition", share=True),
    "class_fid": Guess("condition"),
    "recall": Guess("coverage"),
    "coverage": Guess("coverage"),
    "density": Guess("quality"),
    "precision": Guess("quality"),
    "fid": Guess("quality"),
    "kid": Guess("quality"),
    "sliced_wasserstein": Guess("quality"),
    "completion_fid": Guess("quality"),
    "perceptual_distance": Guess("quality"),
    "psnr": Guess("quality"),
}
"""Beginnings of names; the first that fits counts."""

OF_REAL_IMAGES = ("_real", "_of_real")
"""How names of scores end that say nothing about the samples."""


def understood(document: ScoreDocument) -> ScoreDocument:
    """Return the scores with a meaning each, where a guess can be made."""
    return attrs.evolve(document, scores=tuple(map(_with_meaning, document.scores)))


def _with_meaning(score: Score) -> Score:
    if score.sentence or score.aspect != "other":
        return score
    guess = next((guess for name, guess in BY_NAME.items() if score.row.startswith(name)), None)
    if guess is None:
        return score
    of_samples = score.of_samples and not score.row.endswith(OF_REAL_IMAGES)
    better = score.better if of_samples else ""
    share = score.share or guess.share
    return attrs.evolve(score, aspect=guess.aspect, share=share, of_samples=of_samples, better=better)
