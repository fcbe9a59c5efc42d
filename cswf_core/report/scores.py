"""Scores of a run: from metrics.json with all that belongs to them, or bare from run.json."""

from __future__ import annotations

import math
from typing import Any

import attrs

TEST = "_test"
"""How names of scores against held-out samples end."""

DIRECTIONS = {"lower": "lower is better", "higher": "higher is better"}


@attrs.frozen
class Score:
    """A number that says something about a run's samples."""

    name: str
    value: float
    better: str = ""
    """`lower`, `higher`, or nothing."""
    against: str = ""
    """What it compares with, in words."""
    data: str = ""
    """Name of the data set that it compares with, where that is known."""
    count: int | None = None
    """How many real samples it is against."""
    digest: str = ""
    """Their SHA-256."""
    samples: int | None = None
    protocol: str = ""
    parameters: dict[str, Any] = attrs.field(factory=dict)
    seconds: float | None = None

    @property
    def row(self) -> str:
        """The name without its split: the row of a table that the score belongs to."""
        return self.name.removesuffix(TEST)

    @property
    def is_test(self) -> bool:
        """Whether it is against held-out samples."""
        return self.name.endswith(TEST)


@attrs.frozen
class Evaluation:
    """All scores of a run, with what a reader has to know about them."""

    scores: tuple[Score, ...]
    notes: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    """Files of the run's folder that belong to the scores."""
    facts: dict[str, str] = attrs.field(factory=dict)
    """What was evaluated, on which device, with which weights and versions: name → words."""

    def find(self, name: str) -> Score | None:
        """Return the score of a name; None if there is none."""
        return next((score for score in self.scores if score.name == name), None)


def flat(metrics: Any) -> Evaluation | None:
    """Return the scores of run.json: a mapping from name to number."""
    if not isinstance(metrics, dict):
        return None
    found = [Score(str(name), float(value)) for name, value in metrics.items() if is_number(value)]
    return Evaluation(tuple(found)) if found else None


def parsed(content: dict[str, Any]) -> Evaluation:
    """Return what metrics.json says; raises ValueError if it is not made like one."""
    entries = content.get("scores")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("it has no list of scores")
    scores = tuple(_score(entry) for entry in entries)
    return Evaluation(
        scores=scores,
        notes=_texts(content.get("notes")),
        figures=tuple(name for name in _texts(content.get("figures")) if _is_plain(name)),
        facts=_facts(content),
    )


def is_number(value: Any) -> bool:
    """Say whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _score(entry: dict[str, Any]) -> Score:
    name, value = entry.get("name"), entry.get("value")
    if not isinstance(name, str) or not isinstance(value, (int, float)):
        raise ValueError("a score has no name or no value")
    against = entry.get("against")
    against = against if isinstance(against, dict) else {}
    count = against.get("count")
    words = [str(against[key]) for key in ("data", "split") if against.get(key)]
    parameters = entry.get("parameters")
    samples, seconds, better = entry.get("samples"), entry.get("seconds"), entry.get("better")
    return Score(
        name=name,
        value=float(value),
        better=better if better in DIRECTIONS else "",
        against=" ".join([*words, f"({count:,})"] if isinstance(count, int) else words),
        data=str(against.get("data") or ""),
        count=count if isinstance(count, int) else None,
        digest=str(against.get("sha256") or ""),
        samples=samples if isinstance(samples, int) else None,
        protocol=str(entry.get("protocol") or ""),
        parameters=parameters if isinstance(parameters, dict) else {},
        seconds=float(seconds) if isinstance(seconds, (int, float)) else None,
    )


def _facts(content: dict[str, Any]) -> dict[str, str]:
    """Return what stands beside the scores, in words."""
    facts: dict[str, str] = {}
    generated, weights, device = (_part(content, key) for key in ("generated", "weights", "device"))
    if is_number(generated.get("count")):
        available = generated.get("available")
        of = f" of {available:,}" if is_number(available) and available != generated["count"] else ""
        facts["samples evaluated"] = f"{generated['count']:,}{of}"
    if generated.get("sha256"):
        facts["SHA-256 of these samples"] = str(generated["sha256"])
    if weights.get("file"):
        facts["weights"] = str(weights["file"])
    if weights.get("sha256"):
        facts["SHA-256 of the weights"] = str(weights["sha256"])
    if device.get("name") or device.get("type"):
        facts["evaluated on"] = str(device.get("name") or device["type"])
    if content.get("finished"):
        facts["evaluated at"] = str(content["finished"])
    for name, version in _part(content, "versions").items():
        facts[f"{name} (evaluation)"] = str(version)
    return facts


def _part(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _is_plain(name: str) -> bool:
    """Say whether a name is that of a file in the folder itself, and not a way out of it."""
    return name.endswith(".png") and not set(name) & set("/\\") and not name.startswith(".")
