"""Numbers and names as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cswf_core.report.read import Run

SHORT = {"fid": "FID", "kid": "KID", "wasserstein": "Wasserstein"}
"""Parts of scores' names that are written otherwise."""


def number(value: float) -> str:
    """Return a number with four digits."""
    if not math.isfinite(value):
        return "not finite"
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3e}"
    digits = 4 if not value else max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def seconds(value: Any) -> str:
    """Return a time in the units that a person would say it in; nothing for what is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return ""
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def count(value: Any) -> str:
    """Return a whole number with its thousands apart; other values as they are, None as nothing."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def score(name: str) -> str:
    """Return a score's name in words."""
    return " ".join(SHORT.get(part, part) for part in name.split("_"))


def flattened(value: Any, path: str = "") -> dict[str, str]:
    """Return key path → value for every single value of a recipe."""
    if isinstance(value, Mapping) and value:
        items = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        items = list(enumerate(value))
    else:
        return {path: _plain(value)}
    found: dict[str, str] = {}
    for key, item in items:
        found |= flattened(item, f"{path}.{key}" if path else str(key))
    return found


def facts(run: Run) -> dict[str, str]:
    """Return what was run, name → words; what is not known is left out."""
    known = run.facts
    data, device = _mapping(known.get("data")), _mapping(known.get("device"))
    shape = data.get("shape")
    size = "×".join(map(str, shape)) if isinstance(shape, list) else ""
    samples = f"{count(data['samples'])} samples" if data.get("samples") is not None else ""
    done, planned = known.get("steps_done"), known.get("steps_planned")
    steps = count(done if done is not None else planned)
    if isinstance(planned, int) and isinstance(done, int) and done != planned:
        steps = f"{done:,} of {planned:,}"
    found = {
        "data": ", ".join(filter(None, (run.data_name, samples, size))),
        "particles": count(known.get("particles")),
        "steps": steps,
        "time": seconds(known.get("seconds")),
        "device": _device(device),
        "seed": "" if known.get("seed") is None else str(known["seed"]),
        "started": str(known.get("started") or "").replace("T", " ").replace("+00:00", " UTC"),
    }
    return {name: words for name, words in found.items() if words}


def status(run: Run) -> tuple[str, str]:
    """Return a run's status, and a sentence where it is not simply done."""
    said = str(run.facts.get("status") or "unknown")
    sentences = {
        "done": "",
        "failed": str(run.facts.get("error") or "It has left no reason."),
        "interrupted": "It was stopped before its end, and cswf resume goes on; what it had is shown.",
        "running": "It had not ended when this page was written; run cswf report again to refresh it.",
    }
    return said, sentences.get(said, "How it ended is not known.")


def _device(device: Mapping[str, Any]) -> str:
    name = str(device.get("name") or "")
    if device.get("type") == "cpu":
        threads = device.get("threads")
        return f"CPU {name}".rstrip() + (f", {threads} thread{'s'[: threads != 1]}" if threads else "")
    return name or str(device.get("type") or "")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _plain(value: Any) -> str:
    if isinstance(value, (list, Mapping)):
        return "[" + ", ".join(map(_plain, value)) + "]" if isinstance(value, list) else "{}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
