"""Plugins of a recipe as records have them: whose code made a result, and whether it has changed since.

Models and checkpoints hold numbers that belong to what a plugin's code did. Where that code has changed,
numbers and code need not fit any longer, and a person is told before anything is computed. Built-in plugins are
left to the fingerprints of their directions: their files change with every version, and nearly always in words
only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from cswf_core.errors import RunError
from cswf_core.plugins import BUILTIN
from cswf_core.recipe.recipe import Recipe

KINDS = ("projection", "cdf", "condition", "schedule", "coordinates")
"""Kinds of plugins whose code decides about a flow's steps; data have a digest of their own."""

_accepted: ContextVar[bool] = ContextVar("accepted", default=False)

log = logging.getLogger("cswf")

Facts = Mapping[str, str]
"""kind, name, distribution, version and sha256 of a plugin."""


@contextmanager
def accepting_changed_plugins() -> Iterator[None]:
    """Go on with models and checkpoints of other plugin code inside, with a warning instead of an error."""
    token = _accepted.set(True)
    try:
        yield
    finally:
        _accepted.reset(token)


def refuse_changed_plugins(recipe: Recipe, recorded: Sequence[Facts], result: str) -> None:
    """Raise `RunError` if plugins of others are not those that a result, named in the error, was made with."""
    kinds = (*KINDS, "dataset") if recipe.data.checked.starts else KINDS  # it says where particles begin
    mine = [facts for facts in recipe.plugin_facts() if facts["kind"] in kinds]
    changes = "; ".join(filter(None, (_change(each, recorded) for each in mine if not _built_in(each))))
    if changes and _accepted.get():
        log.warning("%s was made with other code, and goes on with this: %s", result, changes)
    elif changes:
        raise RunError(
            f"{result} was made with other code than is here: {changes}. Bring back what was used then; or, if "
            "you know that the change makes no difference, say --accept-changed-plugins"
        )


def built_ins_changed(recipe: Recipe, recorded: Sequence[Facts]) -> bool:
    """Say whether files of the built-in plugins have changed, which may matter in the last digits."""
    now = {facts["sha256"] for facts in recipe.plugin_facts() if _built_in(facts)}
    before = {facts["sha256"] for facts in recorded if _built_in(facts)}
    return bool(before) and not now <= before


def _change(now: Facts, recorded: Sequence[Facts]) -> str:
    """Return how a plugin differs from the one in a record, in words; nothing if it does not."""
    same = [facts for facts in recorded if all(facts.get(key) == now[key] for key in ("kind", "name"))]
    if not same:
        return f"{_named(now)} took no part then"
    before = next((facts for facts in same if facts.get("distribution") == now["distribution"]), same[0])
    if all(before.get(key) == now[key] for key in ("sha256", "distribution")):
        return ""
    then = before.get("sha256", "")[:12]
    return f"{_named(now)} has SHA-256 {now['sha256'][:12]}…, and {_named(before)} had {then}…"


def _built_in(facts: Facts) -> bool:
    return facts.get("distribution") == BUILTIN


def _named(facts: Facts) -> str:
    whose = f"{facts.get('distribution', '')} {facts.get('version', '')}".strip()
    return f"{facts['kind']} '{facts['name']}' ({whose})"
