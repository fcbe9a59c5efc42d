"""Published numbers beside ours: bars of FID for the data sets that others have published some for."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import attrs
import yaml

from cswf_core.report import words
from cswf_core.report.embedding import safe_name
from cswf_core.scores.document import mapping
from cswf_core.scores.quantities import measured
from cswf_core.scores.replicas import Summary

CUSTOMARY = 50_000
"""Images of each set that published FIDs are computed from, or nearly."""


@attrs.frozen
class Ours:
    """Our FID: of one run, or the mean of several that differ in their seed only."""

    label: str
    data: str
    """Name of the data set that was flowed to."""
    fid: Summary
    colour: str = ""
    """The class of its colour, where several are told apart."""

    @property
    def fits(self) -> bool:
        """Whether it is a number, against the data set that was flowed to."""
        return math.isfinite(self.fid.mean) and self.fid.first.data in ("", self.data)


def charts(ours: Sequence[Ours], us: str) -> list[dict[str, Any]]:
    """Return bars of our FIDs beside published ones, for every data set that has some."""
    made = []
    for data in dict.fromkeys(each.data for each in ours):
        known = published().get(data)
        fitting = [each for each in ours if each.data == data and each.fits]
        if known is None or not fitting:
            continue
        bars = [_their_bar(entry) for entry in known["fid"]]
        bars += [_our_bar(each, coloured=len(fitting) > 1) for each in fitting]
        bars.sort(key=lambda bar: float(bar["value"]))
        made.append(
            {
                "data": data,
                "anchor": f"published-{safe_name(data)}",
                "bars": bars,
                "source": known["source"],
                "us": us,
            }
        )
    return made


@functools.cache
def published() -> dict[str, Any]:
    """Return published scores by the name of the data set's plugin."""
    text = (files("cswf_core.report") / "published.yaml").read_text(encoding="utf-8")
    return mapping(yaml.safe_load(text))


def _our_bar(ours: Ours, *, coloured: bool) -> dict[str, Any]:
    """Return the bar of ours; where its number is of fewer images than is customary, it says so."""
    score, seeds = ours.fid.first, len(ours.fid.scores)
    few = min(score.samples or 0, score.count or 0) < CUSTOMARY
    counts = f"of {words.count(score.samples)} samples against {words.count(score.count)}" if few else ""
    return {
        "value": ours.fid.mean,
        "name": ours.label,
        "remark": ", ".join(filter(None, ("ours", f"{seeds} seeds" if seeds > 1 else "", counts))),
        "text": measured(ours.fid.mean, ours.fid.spread),
        "kind": f"ours {ours.colour}".rstrip() if coloured else "ours",
    }


def _their_bar(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "value": float(entry["value"]),
        "name": entry["method"],
        "remark": ", ".join(filter(None, (entry["group"], entry.get("remark")))),
        "text": f"{entry.get('bound', '')}{entry['value']}",
        "kind": "peer" if entry["group"] == "nonparametric" else "other",
    }
