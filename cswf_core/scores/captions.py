"""Captions: sentences below a table that say how its scores were computed, of what, and by which program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from cswf_core.scores.document import Score, mapping

ACRONYMS = {"fid": "FID", "kid": "KID", "psnr": "PSNR", "l2": "L2", "wasserstein": "Wasserstein"}
"""Parts of scores' names that are written otherwise."""

DIGITS_OF_COMMIT = 12


def in_words(name: str) -> str:
    """Return a score's name as print has it: `class FID`."""
    return " ".join(ACRONYMS.get(part, part) for part in name.split("_"))


def listed(words: Iterable[object], last: str = " and ", most: int | None = None) -> str:
    """Return words as a sentence lists them, each once: `a, b and c`; of many, `most` and how many more."""
    each = list(dict.fromkeys(map(str, words)))
    *others, final = each if most is None or len(each) <= most else [*each[:most], f"{len(each) - most} more"]
    return f"{', '.join(others)}{last}{final}" if others else final


def protocols(scores: Sequence[Score], known: Sequence[str] = ()) -> list[str]:
    """Return a sentence for each protocol, without what it says of other scores, among those `known`."""
    alike: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        alike.setdefault((score.metric, score.protocol), []).append(score)
    return [_protocol(group, known) for group in alike.values()]


def _protocol(scores: Sequence[Score], known: Sequence[str]) -> str:
    names = listed(in_words(score.row) for score in scores)
    rows = tuple(score.row for score in scores)
    said = "; ".join(part for part in scores[0].protocol.split("; ") if _concerns(part, rows, known))
    counts = [f"{score.samples:,}" for score in scores if score.samples is not None]
    references = [score.against for score in scores if score.data]
    of = f"{listed(counts)} samples" if counts and f"{listed(counts)} samples" not in said else ""
    against = f"against {listed(references)}" if references else ""
    parts = [
        said,
        " ".join(filter(None, (of, against))),
    ]
    return f"{names[:1].upper()}{names[1:]}: {'; '.join(filter(None, parts)) or 'nothing says how'}."


def _concerns(part: str, rows: Sequence[str], known: Sequence[str]) -> bool:
    """Say whether a part of a protocol, perhaps `NAME: …`, concerns one of the rows; see `Result.protocol`."""
    head = re.match(r"(\w+): ", part)
    named = [row for row in known if head is not None and row.startswith(head[1])]
    return not named or any(row in named for row in rows)


def spreads(methods: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what ± means; `methods` has for each way of estimating it the scores that have it so.

    The empty way is that of scores without ±.
    """
    known = {method: names for method, names in methods.items() if method}
    if len(known) == 1:
        sentences = [f"± is the {method}." for method in known]
    else:
        sentences = [f"± of {listed(names)} is the {method}." for method, names in known.items()]
    if "" in methods and known:
        sentences.append(f"Of numbers without ± ({listed(methods[''])}) nobody knows how sure they are.")
    return sentences


def seeds(by_label: Mapping[str, Sequence[int]]) -> list[str]:
    """Return which seeds the runs of each row have; nothing where no seed is known."""
    known = {label: ", ".join(map(str, each)) for label, each in by_label.items() if each}
    if not known:
        return []
    if len(set(known.values())) == 1 and len(known) == len(by_label):
        several = any(len(each) > 1 for each in by_label.values())
        return [f"{'Seeds' if several else 'Seed'} {next(iter(known.values()))}."]
    return [f"Seeds: {'; '.join(f'{label}: {each}' for label, each in known.items())}."]


def circumstances(scores: Sequence[Score]) -> list[str]:
    """Return where and by which versions scores were computed, as far as they say so."""
    devices: list[str] = []
    programs: list[str] = []
    torches: list[str] = []
    commits: list[str] = []
    for score in scores:
        device, versions = (mapping(score.circumstances.get(key)) for key in ("device", "versions"))
        devices.append(str(device.get("name") or device.get("type") or ""))
        programs.append(str(versions.get("cswf") or ""))
        torches.append(str(versions.get("torch") or ""))
        commits.append(_short(str(score.circumstances.get("commit") or "")))
    parts = {"on": devices, "by cswf": programs, "PyTorch": torches, "commit": commits}
    words = [f"{name} {listed(filter(None, each))}" for name, each in parts.items() if any(each)]
    return [f"Computed {words[0]}{''.join(f', {word}' for word in words[1:])}."] if words else []


def _short(commit: str) -> str:
    """Return a commit by its first digits, and whether files differed from it."""
    digits, hyphen, rest = commit.partition("-")
    return f"{digits[:DIGITS_OF_COMMIT]}{hyphen}{rest}"
