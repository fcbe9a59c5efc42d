"""The document of scores, `metrics.json`: each score with all that it depends on; read, joined, compared.

Scores may come from several evaluations of one set of samples, so each has its own circumstances: the samples'
digest, settings, device, versions, time, command and commit. What does not fit together is told.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from cswf_core.documents import read_json
from cswf_core.errors import RunError

FORMAT = 2
"""Of the document."""

TEST = "_test"
"""How the names of scores against a test split end."""

CIRCUMSTANCES = ("settings", "device", "versions", "finished", "command", "commit", "weights")
"""Keys of a score that say how, where and when it was computed."""

COPYING = "copying: "
"""How notes begin that warn of copies of training images among the samples."""

ASPECTS = ("quality", "coverage", "condition", "copying", "other")
"""What scores are about, in the order that pages have."""


class UnknownFormatError(ValueError):
    """A document of another version of cswf, which is neither damaged nor to be written over."""


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
    training_digest: str = ""
    """SHA-256 of the training samples, of scores that are against no one set in particular."""
    samples: int | None = None
    protocol: str = ""
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    error: float | None = None
    """Its standard error; None where none could be computed."""
    error_method: str = ""
    error_freedom: float = math.inf
    """Degrees of freedom of the error; few where it was estimated from few parts."""
    sentence: str = ""
    """What it says, in plain words."""
    aspect: str = "other"
    share: bool = False
    """Whether it is a share, to be shown in percent."""
    expected: float | None = None
    """What real images would have; None: nothing is expected."""
    of_samples: bool = True
    """Whether it is a property of the generated samples."""
    source: str = ""
    """The file of the samples, or where they came from."""
    all_samples_digest: str = ""
    """SHA-256 of all samples of the source, which are more where only some were scored."""
    copying: bool = False
    """Whether the samples include copies, beyond chance: such a score is never the best of several."""
    circumstances: dict[str, Any] = attrs.field(factory=dict)
    """Settings, device, versions, time, command and commit: the keys of CIRCUMSTANCES."""

    @property
    def held_out(self) -> bool:
        """Whether it is against held-out samples."""
        return self.split == "test"

    @property
    def row(self) -> str:
        """The name that it shares with the same score against the training samples."""
        return self.name.removesuffix(TEST) if self.held_out else self.name

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
        settings = mapping(self.circumstances.get("settings"))
        weights = str(mapping(self.circumstances.get("weights")).get("sha256") or "none")
        return {
            "metrics": self.metric,
            "parameters": str(self.parameters),
            "data": self.data,
            "splits": self.split,
            "real samples": self.digest or self.training_digest,
            "numbers of samples": "unknown" if self.samples is None else f"{self.samples:,}",
            "seeds of evaluation": str(settings.get("seed", "unknown")),
            "precision": self.precision,
            "weights": weights[:12],
        }

    @property
    def precision(self) -> str:
        """The precision that was asked for and, where its protocol says so, the numbers it came to."""
        requested = str(mapping(self.circumstances.get("settings")).get("precision", "unknown"))
        numbers = self.protocol.rpartition("features in ")[2] if "features in " in self.protocol else ""
        return f"{requested} ({numbers})" if numbers else requested


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
    """Return what a metrics.json says; raise `OSError` or `ValueError` if it is not made like one."""
    return of_json(read_json(path))


def of_json(content: Any) -> ScoreDocument:
    """Return a document from its JSON; raise `ValueError` if it is not made like one."""
    if not isinstance(content, dict):
        raise ValueError("it is not a mapping")
    entries = content.get("scores")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("it has no list of scores")
    if "format" not in content:
        raise ValueError("it does not say its format")
    if content["format"] != FORMAT:
        raise UnknownFormatError(
            f"it has format {content['format']!r}, and this version of cswf reads format {FORMAT}; remove it, "
            "and score again with `cswf eval RUN`"
        )
    scores = [_score(entry) for entry in entries]
    copied = {
        (score.source, score.all_samples_digest)
        for score in scores
        if any(note.startswith(COPYING) for note in score.notes)
    }
    return ScoreDocument(
        scores=tuple(
            attrs.evolve(score, copying=(score.source, score.all_samples_digest) in copied) for score in scores
        ),
        notes=_texts(content.get("notes")),
        figures=tuple(name for name in _texts(content.get("figures")) if _is_picture(name)),
        leads={name: str(text) for name, text in mapping(content.get("leads")).items()},
    )


def _score(entry: dict[str, Any]) -> Score:
    name, value = entry.get("name"), entry.get("value")
    if not isinstance(name, str) or not _is_number(value):
        raise ValueError("a score has no name or no value")
    against, meaning = mapping(entry.get("against")), mapping(entry.get("meaning"))
    error = _number(entry.get("error"))
    return Score(
        name=name,
        value=float(value),  # type: ignore[arg-type]  # _is_number has looked
        detail=entry.get("detail") is True,
        better=entry["better"] if entry.get("better") in ("lower", "higher") else "",
        metric=str(entry.get("metric") or ""),
        parameters=mapping(entry.get("parameters")),
        data=str(against.get("data") or ""),
        split=str(against.get("split") or ""),
        count=_whole(against.get("count")),
        digest=str(against.get("sha256") or ""),
        training_digest=str(mapping(entry.get("training")).get("sha256") or ""),
        samples=_whole(entry.get("samples")),
        protocol=str(entry.get("protocol") or ""),
        notes=_texts(entry.get("notes")),
        seconds=_number(entry.get("seconds")),
        error=error if error is not None and error >= 0 else None,
        error_method=str(entry.get("error_method") or ""),
        error_freedom=_number(entry.get("error_freedom")) or math.inf,
        sentence=str(meaning.get("sentence") or ""),
        aspect=meaning["aspect"] if meaning.get("aspect") in ASPECTS else "other",
        share=meaning.get("share") is True,
        expected=_number(meaning.get("expected")),
        of_samples=meaning.get("of_samples") is not False,
        source=str(entry.get("source") or ""),
        all_samples_digest=str(entry.get("all_samples_sha256") or ""),
        circumstances={key: entry[key] for key in CIRCUMSTANCES if entry.get(key)},
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
        of_json(earlier)
    except UnknownFormatError as error:
        raise RunError(f"metrics.json cannot be added to: {error}, or give another --out") from None
    except ValueError:
        return later, ["the earlier metrics.json cannot be read, and is replaced"]
    told: list[str] = []
    before = len(earlier["scores"])
    entries = _of_these_samples(earlier["scores"], later, told)
    figures = _texts(earlier.get("figures"))
    if len(entries) < before:
        figures = tuple(
            name for name in figures if _is_offline(name) != _is_offline(later["generated"]["source"])
        )
    scores = {entry["name"]: entry for entry in entries}
    larger: list[str] = []
    renamed: list[str] = []
    for entry in later["scores"]:
        entry = _apart(entry, scores, renamed)
        present = scores.get(entry["name"])
        if present is not None and entry["samples"] < (_whole(present.get("samples")) or 0):
            larger.append(entry["name"])
            continue
        told += [] if present is None else _differences(present, entry)
        scores[entry["name"]] = entry
    if renamed:
        told.append(f"scores of these names are there already, against other real samples: {_few(renamed)}")
    if larger:
        told.append(f"metrics.json keeps its scores of more samples: {', '.join(larger)}")
    document = {
        **{key: fact for key, fact in earlier.items() if {"file", "sha256"} <= mapping(fact).keys()},
        **later,
        "scores": list(scores.values()),
        "notes": [*_texts(later["generated"].get("notes")), *notes_of(scores.values())],
        "figures": list(dict.fromkeys([*figures, *later["figures"]])),
        "leads": {**mapping(earlier.get("leads")), **later.get("leads", {})},
    }
    return document, [*told, *mismatches(of_json(document).scores)]


def _of_these_samples(
    entries: Sequence[dict[str, Any]], later: Mapping[str, Any], told: list[str]
) -> list[dict[str, Any]]:
    """Return the entries without those of samples that have been in the same file before."""
    source, digest = later["generated"]["source"], later["generated"].get("all_sha256")

    def is_gone(entry: Mapping[str, Any]) -> bool:
        of_all = entry.get("all_samples_sha256")
        return entry.get("source") == source and bool(of_all) and bool(digest) and of_all != digest

    gone = [entry["name"] for entry in entries if is_gone(entry)]
    if gone:
        told.append(f"{source} has other samples now, so that their earlier scores are left out: {_few(gone)}")
    return [entry for entry in entries if not is_gone(entry)]


def _is_offline(name: str) -> bool:
    """Say whether a file or figure is of offline samples, as its name tells."""
    return "-offline" in name


def _apart(entry: dict[str, Any], scores: Mapping[str, Any], renamed: list[str]) -> dict[str, Any]:
    """Return a score under a name of its own, if one against other real samples of the same name is there."""

    def is_taken(name: str) -> bool:
        return name in scores and _reference(scores[name]) not in (None, _reference(entry))

    row, ending = entry["row"], entry["name"].removeprefix(entry["row"])
    if _reference(entry) is None or not is_taken(entry["name"]):
        return entry
    number = next(n for n in itertools.count(2) if not is_taken(f"{row}_{n}{ending}"))
    name = f"{row}_{number}{ending}"
    renamed.append(f"{entry['name']} (now {name})")
    return {**entry, "row": f"{row}_{number}", "name": name}


def _reference(entry: Mapping[str, Any]) -> str | None:
    return mapping(entry.get("against")).get("sha256")


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a sentence if a score takes the place of one that was computed otherwise."""
    pairs = {key: (_flat(before, key), _flat(after, key)) for key in ("settings", "parameters")}
    changes = [
        f"{name} {now.get(name)}, was {was.get(name)}"
        for was, now in pairs.values()
        for name in {**was, **now}
        if was and was.get(name) != now.get(name)
    ]
    if before.get("samples") != after["samples"]:
        changes.append(f"of {after['samples']:,} samples, was {before.get('samples')}")
    return [f"{after['name']} takes the place of an earlier one: {'; '.join(changes)}"] if changes else []


def _flat(entry: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping(entry.get(key)).items() if name != "samples"}


def mismatches(scores: Iterable[Score]) -> list[str]:
    """Return a sentence for each circumstance in which scores of one document differ, details left out."""
    each = [score for score in scores if not score.detail and score.circumstances]
    sentences = []
    for name, of in _TRAITS.items():
        groups: dict[str, list[str]] = {}
        for score in each:
            value = of(score.circumstances)
            if value is not None:
                groups.setdefault(str(value), []).append(score.name)
        if len(groups) > 1:
            parts = "; ".join(f"{value}: {_few(names)}" for value, names in groups.items())
            sentences.append(f"these scores were computed with different {name} ({parts})")
    return sentences


_TRAITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "seeds of evaluation": lambda known: mapping(known.get("settings")).get("seed"),
    "precision": lambda known: mapping(known.get("settings")).get("precision"),
    "devices": lambda known: mapping(known.get("device")).get("name"),
    "versions of PyTorch": lambda known: mapping(known.get("versions")).get("torch"),
    "versions of cswf": lambda known: mapping(known.get("versions")).get("cswf"),
    "commits of cswf": lambda known: known.get("commit"),
}
"""Names of circumstances → their value in a score's."""


def notes_of(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the notes of all scores, each once."""
    return list(dict.fromkeys(note for entry in entries for note in _texts(entry.get("notes"))))


def _few(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def mapping(value: Any) -> dict[str, Any]:
    """Return a value that is a mapping, and an empty one instead of anything else."""
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_picture(name: str) -> bool:
    """Say whether a name is that of a picture in the folder itself, and not a way out of it."""
    return name.endswith(".png") and not set(name) & set("/\\") and not name.startswith(".")
