"""The scores of a run, `metrics.json`: each with all that it depends on; written, read, joined, compared.

Scores may come from several evaluations of one set of samples, so each has its own circumstances: the samples'
digest, settings, device, versions, time, command and commit. What does not fit together is told.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import attrs

from cswf_core.documents import read_json
from cswf_core.errors import OtherFormatError, RunError
from cswf_core.interfaces.metric import Aspect, Meaning

FORMAT = 2
"""Of the document."""

CIRCUMSTANCES = ("settings", "device", "versions", "command", "commit", "finished", "weights")
"""Keys of a score that say how, where and when it was computed."""


@attrs.frozen
class Score:
    """A number that says something about samples, and what it depends on."""

    name: str
    value: float
    detail: bool = False
    better: str = ""
    """`lower`, `higher`, or nothing."""
    metric: str = ""
    parameters: dict[str, Any] = attrs.field(factory=dict)
    data: str = ""
    """Name of the data set that it compares with, where that is known."""
    split: str = ""
    """The split of it: `train`, `test`, or nothing."""
    count: int | None = None
    """How many real samples it is against."""
    digest: str = ""
    """Their SHA-256."""
    training: dict[str, Any] = attrs.field(factory=dict)
    """Number and SHA-256 of the training samples, of scores that are against no one set in particular."""
    samples: int | None = None
    source: str = ""
    """The file of the samples, or where they came from."""
    samples_digest: str = ""
    """SHA-256 of the samples that were scored."""
    all_samples_digest: str = ""
    """SHA-256 of all samples of the source, which are more where only some were scored."""
    error: float | None = None
    """Its standard error; None where none could be computed."""
    error_method: str = ""
    error_freedom: float = math.inf
    """Degrees of freedom of the error; few where it was estimated from few parts."""
    meaning: Meaning = Meaning()
    protocol: str = ""
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    circumstances: dict[str, Any] = attrs.field(factory=dict)
    """Settings, device, versions, time, command and commit: the keys of CIRCUMSTANCES."""
    copying: bool = False
    """Whether the samples include copies, beyond chance: such a score is never the best of several."""

    @classmethod
    def of_entry(cls, entry: dict[str, Any]) -> Score:
        """Return a score from an entry of the document; raise `ValueError` if it has no name or no value."""
        name = entry.get("name")
        value = _number(entry.get("value"))
        if not isinstance(name, str) or value is None:
            raise ValueError("a score has no name or no value")
        against = mapping(entry.get("against"))
        meaning = mapping(entry.get("meaning"))
        error = _number(entry.get("error"))
        return cls(
            name=name,
            value=float(value),
            detail=entry.get("detail") is True,
            better=entry["better"] if entry.get("better") in ("lower", "higher") else "",
            metric=str(entry.get("metric") or ""),
            parameters=mapping(entry.get("parameters")),
            data=str(against.get("data") or ""),
            split=str(against.get("split") or ""),
            count=_whole(against.get("count")),
            digest=str(against.get("sha256") or ""),
            training=mapping(entry.get("training")),
            samples=_whole(entry.get("samples")),
            source=str(entry.get("source") or ""),
            samples_digest=str(entry.get("samples_sha256") or ""),
            all_samples_digest=str(entry.get("all_samples_sha256") or ""),
            error=error if error is not None and error >= 0 else None,
            error_method=str(entry.get("error_method") or ""),
            error_freedom=_number(entry.get("error_freedom")) or math.inf,
            meaning=Meaning(
                sentence=str(meaning.get("sentence") or ""),
                aspect=meaning["aspect"] if meaning.get("aspect") in get_args(Aspect) else "other",
                share=meaning.get("share") is True,
                expected=_number(meaning.get("expected")),
                of_samples=meaning.get("of_samples") is not False,
            ),
            protocol=str(entry.get("protocol") or ""),
            notes=texts(entry.get("notes")),
            seconds=_number(entry.get("seconds")),
            circumstances={key: entry[key] for key in CIRCUMSTANCES if key in entry},
        )

    def entry(self) -> dict[str, Any]:
        """Return it as the document has it."""
        against = {"data": self.data, "split": self.split, "count": self.count, "sha256": self.digest}
        return {
            "name": self.name,
            "row": self.row,
            "value": self.value,
            "detail": self.detail,
            "better": self.better,
            "metric": self.metric,
            "parameters": self.parameters,
            "against": against if any(against.values()) else None,
            "training": self.training or None,
            "samples": self.samples,
            "source": self.source,
            "samples_sha256": self.samples_digest,
            "all_samples_sha256": self.all_samples_digest,
            "error": self.error,
            "error_method": self.error_method,
            "error_freedom": None if math.isinf(self.error_freedom) else self.error_freedom,
            "meaning": attrs.asdict(self.meaning),
            "protocol": self.protocol,
            "notes": list(self.notes),
            "seconds": self.seconds,
            **self.circumstances,
        }

    @property
    def held_out(self) -> bool:
        """Whether it is against held-out samples."""
        return self.split == "test"

    @property
    def row(self) -> str:
        """The name that it shares with the same score against the training samples."""
        return self.name.removesuffix("_test") if self.held_out else self.name

    @property
    def against(self) -> str:
        """What it compares with, in words."""
        real = "" if self.count is None else f"({self.count:,})"
        return " ".join(filter(None, (self.data, self.split, real)))

    @property
    def basis(self) -> tuple[Any, ...]:
        """All that two scores must share to be compared, but for the samples themselves."""
        return (self.row, *self.traits.values())

    @property
    def traits(self) -> dict[str, str]:
        """What a score depends on beside the samples themselves, in words: name of a trait → its value."""
        requested = str(self.told("settings", "precision", "unknown"))
        numbers = self.protocol.rpartition("features in ")[2] if "features in " in self.protocol else ""
        return {
            "metrics": self.metric,
            "parameters": str(self.parameters),
            "data": self.data,
            "splits": self.split,
            "real samples": self.digest or str(self.training.get("sha256") or ""),
            "numbers of samples": "unknown" if self.samples is None else f"{self.samples:,}",
            "seeds of evaluation": str(self.told("settings", "seed", "unknown")),
            "precision": f"{requested} ({numbers})" if numbers else requested,
            "weights": str(self.told("weights", "sha256") or "none")[:12],
        }

    def told(self, circumstance: str, key: str, otherwise: Any = None) -> Any:
        """Return one thing that a circumstance says, such as the seed in the settings."""
        return mapping(self.circumstances.get(circumstance)).get(key, otherwise)


@attrs.frozen
class ScoreDocument:
    """All scores of a set of samples, with what a reader has to know about them."""

    scores: tuple[Score, ...] = ()
    notes: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    """Files of the folder that belong to the scores."""
    leads: dict[str, str] = attrs.field(factory=dict)
    """File of a figure → a sentence on what it shows."""

    def find(self, row: str, *, held_out: bool = False) -> Score | None:
        """Return the score of a row against training or held-out samples; None if there is none."""
        return next((s for s in self.scores if (s.row, s.held_out) == (row, held_out)), None)


def read_scores(path: Path) -> ScoreDocument:
    """Return what a metrics.json says; raise as `of_json` does, and `OSError` if it cannot be read."""
    return of_json(read_json(path))


def of_json(content: Any) -> ScoreDocument:
    """Return a document from its JSON; raise `ValueError` if it is damaged, `OtherFormatError` for another."""
    if not isinstance(content, dict):
        raise ValueError("it is not a mapping")
    entries = content.get("scores")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("it has no list of scores")
    if "format" not in content:
        raise ValueError("it does not say its format")
    if content["format"] != FORMAT:
        raise OtherFormatError(
            f"it has format {content['format']!r}, and this version of cswf reads format {FORMAT}; remove it, "
            "and score again with `cswf eval RUN`"
        )
    scores = [Score.of_entry(entry) for entry in entries]
    copied = {
        (score.source, score.all_samples_digest)
        for score in scores
        if any(note.startswith("copying: ") for note in score.notes)
    }
    return ScoreDocument(
        scores=tuple(
            attrs.evolve(score, copying=(score.source, score.all_samples_digest) in copied) for score in scores
        ),
        notes=texts(content.get("notes")),
        figures=tuple(name for name in texts(content.get("figures")) if _is_picture(name)),
        leads={name: str(text) for name, text in mapping(content.get("leads")).items()},
    )


def joined(earlier: Any, later: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the document after another evaluation, and a sentence for each change that nobody should miss.

    Scores of samples that are no longer there are left out. Of two scores of one name, that of more samples
    stays, and of as many the later one; against other real samples, both stay. An earlier document that is
    damaged is replaced, with a warning; one of another format raises `RunError`.
    """
    if earlier is None:
        return later, []
    try:
        before = of_json(earlier).scores
    except OtherFormatError as error:
        raise RunError(f"metrics.json cannot be added to: {error}, or give another --out") from None
    except ValueError:
        return later, ["the earlier metrics.json cannot be read, and is replaced"]
    told: list[str] = []
    source = later["generated"]["source"]
    digest = later["generated"].get("all_sha256")
    gone = [
        score
        for score in before
        if score.source == source and digest and score.all_samples_digest not in ("", digest)
    ]
    figures = texts(earlier.get("figures"))
    if gone:
        told.append(
            f"{source} has other samples now, so that their earlier scores are left out: "
            f"{_few([score.name for score in gone])}"
        )
        figures = tuple(name for name in figures if ("-offline" in name) != ("-offline" in source))
    scores = {score.name: score for score in before if score not in gone}
    _add(scores, of_json(later).scores, told)
    document = {
        **{key: fact for key, fact in earlier.items() if {"file", "sha256"} <= mapping(fact).keys()},
        **later,
        "scores": [score.entry() for score in scores.values()],
        "notes": [*texts(later["generated"].get("notes")), *notes_of(scores.values())],
        "figures": list(dict.fromkeys([*figures, *later["figures"]])),
        "leads": {**mapping(earlier.get("leads")), **later.get("leads", {})},
    }
    return document, [*told, *mismatches(scores.values())]


def _add(scores: dict[str, Score], later: Iterable[Score], told: list[str]) -> None:
    """Add later scores to earlier ones by their name, with a sentence for what is kept, renamed or replaced."""
    larger: list[str] = []
    renamed: list[str] = []
    for each in later:
        score = _apart(each, scores, renamed)
        present = scores.get(score.name)
        if present is not None and (score.samples or 0) < (present.samples or 0):
            larger.append(score.name)
            continue
        told += [] if present is None else _differences(present, score)
        scores[score.name] = score
    if renamed:
        told.append(f"scores of these names are there already, against other real samples: {_few(renamed)}")
    if larger:
        told.append(f"metrics.json keeps its scores of more samples: {', '.join(larger)}")


def _apart(score: Score, scores: Mapping[str, Score], renamed: list[str]) -> Score:
    """Return a score under a name of its own, if one against other real samples of the same name is there."""

    def is_taken(name: str) -> bool:
        return name in scores and scores[name].digest not in ("", score.digest)

    if not score.digest or not is_taken(score.name):
        return score
    ending = score.name.removeprefix(score.row)
    names = (f"{score.row}_{number}{ending}" for number in itertools.count(2))
    name = next(name for name in names if not is_taken(name))
    renamed.append(f"{score.name} (now {name})")
    return attrs.evolve(score, name=name)


def _differences(before: Score, after: Score) -> list[str]:
    """Return a sentence if a score takes the place of one that was computed otherwise."""
    pairs = [
        (mapping(before.circumstances.get("settings")), mapping(after.circumstances.get("settings"))),
        (before.parameters, after.parameters),
    ]
    changes = [
        f"{name} {now.get(name)}, was {was.get(name)}"
        for was, now in pairs
        for name in {**was, **now}
        if name != "samples" and was.keys() - {"samples"} and was.get(name) != now.get(name)
    ]
    if before.samples != after.samples:
        changes.append(f"of {after.samples:,} samples, was {before.samples}")
    return [f"{after.name} takes the place of an earlier one: {'; '.join(changes)}"] if changes else []


def mismatches(scores: Iterable[Score]) -> list[str]:
    """Return a sentence for each circumstance in which scores of one document differ, details left out."""
    traits: dict[str, Callable[[Score], Any]] = {
        "seeds of evaluation": lambda score: score.told("settings", "seed"),
        "precision": lambda score: score.told("settings", "precision"),
        "devices": lambda score: score.told("device", "name"),
        "versions of PyTorch": lambda score: score.told("versions", "torch"),
        "versions of cswf": lambda score: score.told("versions", "cswf"),
        "commits of cswf": lambda score: score.circumstances.get("commit") or None,
    }
    each = [score for score in scores if not score.detail]
    sentences = []
    for name, trait in traits.items():
        groups: dict[str, list[str]] = {}
        for score in each:
            value = trait(score)
            if value is not None:
                groups.setdefault(str(value), []).append(score.name)
        if len(groups) > 1:
            parts = "; ".join(f"{value}: {_few(names)}" for value, names in groups.items())
            sentences.append(f"these scores were computed with different {name} ({parts})")
    return sentences


def notes_of(scores: Iterable[Score]) -> list[str]:
    """Return the notes of all scores, each once."""
    return list(dict.fromkeys(note for score in scores for note in score.notes))


def _few(names: Sequence[str]) -> str:
    """Return the first six names, and how many more there are."""
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def mapping(value: Any) -> dict[str, Any]:
    """Return a value that is a mapping, and an empty one instead of anything else."""
    return value if isinstance(value, dict) else {}


def is_number(value: Any) -> bool:
    """Say whether a value of JSON is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def texts(value: Any) -> tuple[str, ...]:
    """Return the items of a list as texts, and none of anything else."""
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _number(value: Any) -> float | None:
    return value if is_number(value) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_picture(name: str) -> bool:
    """Say whether a name is that of a picture in the folder itself, and not a way out of it."""
    return name.endswith(".png") and not set(name) & set("/\\") and not name.startswith(".")
