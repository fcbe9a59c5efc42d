"""Facts of a run in words: what was computed, where, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cswf_core.report import words
from cswf_core.report.read import ReportedRun
from cswf_core.scores.document import mapping

ENDINGS = {
    "done": "",
    "interrupted": "It was stopped before its end, and cswf resume goes on; what it had is shown.",
    "running": "It had not ended when this page was written; run cswf report again to refresh it.",
}
"""A sentence for each status but `failed`, which has a reason of its own."""


def ending(run: ReportedRun) -> str:
    """Return a sentence on a run that is not simply done; nothing on an evaluation, which has no status."""
    if not run.is_run:
        return ""
    if run.status == "failed":
        return str(run.facts.get("error") or "It has left no reason.")
    return ENDINGS.get(run.status, "How it ended is not known.")


def facts(run: ReportedRun) -> dict[str, str]:
    """Return what was run, name → words; what is not known is left out."""
    record = run.facts
    data = mapping(record.get("data"))
    shape = data.get("shape")
    size = "×".join(map(str, shape)) if isinstance(shape, list) else ""
    samples = f"{words.count(data['samples'])} samples" if data.get("samples") is not None else ""
    done, planned = record.get("steps_done"), record.get("steps_planned")
    steps = words.count(done if done is not None else planned)
    if isinstance(planned, int) and isinstance(done, int) and done != planned:
        steps = f"{done:,} of {planned:,}"
    named = {
        "data": ", ".join(filter(None, (run.data_name, samples, size))),
        "particles": words.count(record.get("particles")),
        "carried along": _carried(record),
        "steps": steps,
        "time": words.seconds(record.get("seconds")),
        "device": _device(mapping(record.get("device"))),
        "seed": "" if record.get("seed") is None else str(record["seed"]),
        "started": str(record.get("started") or "").replace("T", " ").replace("+00:00", " UTC"),
    }
    return {name: text for name, text in named.items() if text}


def _carried(record: Mapping[str, Any]) -> str:
    """Return how wide the particles that were carried along spread; nothing if there were none."""
    usual, width = record.get("spread"), record.get("offline_spread")
    return f"particles that spread {width / usual:.2f} times as wide" if usual and width else ""


def _device(device: Mapping[str, Any]) -> str:
    name = str(device.get("name") or "")
    if device.get("type") == "cpu":
        threads = device.get("threads")
        return f"CPU {name}".rstrip() + (f", {threads} thread{'s'[: threads != 1]}" if threads else "")
    return name or str(device.get("type") or "")


def versions(run: ReportedRun) -> dict[str, str]:
    """Return the versions of what a result depends on, and the digests of data and samples."""
    rows = {str(name): str(version) for name, version in mapping(run.facts.get("versions")).items()}
    digests = {
        "SHA-256 of the data": mapping(run.facts.get("data")).get("sha256"),
        "SHA-256 of the samples": run.facts.get("samples_sha256"),
    }
    return rows | {title: str(digest) for title, digest in digests.items() if digest}
