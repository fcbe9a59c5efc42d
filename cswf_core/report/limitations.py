"""Limitations: what a run's scores do not say, in sentences that are true of this run."""

from __future__ import annotations

from collections.abc import Sequence

from cswf_core.report.read import ReportedRun
from cswf_core.report.section import Section
from cswf_core.scores.captions import in_words as score_in_words
from cswf_core.scores.captions import listed
from cswf_core.scores.document import Score

CUSTOMARY = 50_000
"""Samples that published FIDs are computed from."""

OF_FEATURES = (
    "fid",
    "kid",
    "precision-recall",
    "density-coverage",
    "class-fid",
    "completion-fid",
    "perceptual-distance",
)
"""Metrics that see features of a network and not images."""

SPACES = {"pixels": "by their pixels", "features": "by their Inception features"}
"""Where copies are looked for → in words."""


def limitations(run: ReportedRun) -> Section:
    """Return the sentences on one run; none where it has no scores."""
    scores = [score for score in run.evaluation.scores if not score.detail and score.of_samples]
    sentences = [] if not scores else [*_uncertain(run, scores), *_reference(scores), *_copies(run)]
    return Section("limitations", "Limitations", "sections.sentences", sentences)


def _uncertain(run: ReportedRun, scores: Sequence[Score]) -> list[str]:
    """Return sentences on seeds, errors and numbers of samples."""
    sentences = []
    if run.is_run:
        known = any(score.error is not None for score in scores)
        spread = "; the ± beside a score is of its samples, and not of other seeds" if known else ""
        sentences.append(f"These are the scores of one run: another seed gives others{spread}.")
    bare = [score_in_words(score.name) for score in scores if score.error is None]
    if bare:
        sentences.append(f"No uncertainty was computed of {listed(bare, most=6)}.")
    few = [score for score in _frechet(scores) if score.samples is not None and score.samples < CUSTOMARY]
    for score in few[:1]:
        sentences.append(
            f"{score_in_words(score.name)} is of {score.samples:,} samples, and published numbers are of "
            f"{CUSTOMARY:,}: it falls with the number of samples, so that they do not compare."
        )
    return sentences


def _frechet(scores: Sequence[Score]) -> list[Score]:
    return [score for score in scores if score.metric == "fid"]


def _reference(scores: Sequence[Score]) -> list[str]:
    """Return sentences on what the samples were compared with, and by what."""
    sentences = []
    on_training = [score_in_words(score.name) for score in scores if score.split == "train"]
    if on_training:
        rest = "" if any(score.held_out for score in scores) else "; no score is against held-out samples"
        sentences.append(
            f"The reference of {listed(on_training, most=6)} is the training set, which copies of it would "
            f"match perfectly{rest}."
        )
    seen = dict.fromkeys(score_in_words(score.row) for score in scores if score.metric in OF_FEATURES)
    if seen:
        verb = "sees" if len(seen) == 1 else "see"
        sentences.append(
            f"{listed(seen, most=6)} {verb} features of a network that was trained on the photographs of "
            "ImageNet, and nothing that these features miss."
        )
    return sentences


def _copies(run: ReportedRun) -> list[str]:
    """Return a sentence on where copies were looked for, of images only."""
    looked = [score for score in run.evaluation.scores if score.aspect == "copying" and score.of_samples]
    if not looked:
        return ["Copies of training images were not looked for."] if run.samples is not None else []
    named = [mode for score in looked for mode in _spaces(score)]
    ways = " and ".join(SPACES[mode] for mode in SPACES if mode in named) or "by their distance"
    counts = [score.samples for score in looked if score.samples is not None]
    among = f" among {max(counts):,} samples" if counts else ""
    return [
        f"Copies were looked for {ways}{among}: others, and copies that are far away by that measure, are "
        "not found."
    ]


def _spaces(score: Score) -> Sequence[str]:
    spaces = score.parameters.get("spaces")
    return [str(space) for space in spaces] if isinstance(spaces, list) else []
