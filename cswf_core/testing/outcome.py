"""Outcomes of checks: passed, failed with what was expected and what came, or skipped with the reason."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, Literal

import attrs

from cswf_core.checks import Adapter, checked
from cswf_core.errors import CswfError, DataError, PluginError, did_you_mean
from cswf_core.interfaces import Owner

LISTED = 3
"""Claims that an error names, of those that fail for one reason."""


class FailedChecksError(AssertionError):
    """Checks of a plugin that have failed, all of them, each with what was expected and what came."""


class FaultError(Exception):
    """A claim that does not hold."""

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(f"expected {expected}, got {got}")


class SkipError(Exception):
    """A claim that cannot be looked at here, for a reason in one sentence."""


@attrs.frozen
class Outcome:
    """How one check of a plugin has ended."""

    claim: str
    """The check's name in words: `directions have unit length`."""
    result: Literal["passed", "failed", "skipped"]
    sentence: str = ""
    """Why it failed or was skipped; where it passed, a remark that is worth reading, or nothing."""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.result}: {self.claim}" + (f": {self.sentence}" if self.sentence else "")


class Subject:
    """A plugin that is being checked, and what its checks share; each kind has a subject of its own."""

    kind: ClassVar[str]

    def __init__(self, plugin: Any) -> None:
        self.plugin = plugin

    @property
    def owner(self) -> Owner:
        """What errors call the plugin: its class and module, unless it came through the plugin door."""
        return self.plugin.owner if isinstance(self.plugin, Adapter) else Owner.of(self.kind, self.plugin)

    @cached_property
    def checked(self) -> Any:
        """The plugin behind the checks of its contract, as the engine calls it."""
        return checked(self.plugin, self.owner, self.kind)


Check = Callable[[Any], str | None]
"""A claim about a subject, with a docstring that says what it proves; may return a remark."""

OnResult = Callable[[Outcome], object]
"""Hears of every outcome as soon as it is known."""


@attrs.frozen
class Kit:
    """All checks of one kind of plugin."""

    subject: Callable[..., Subject]
    """(plugin, options) → the subject of the checks."""
    checks: Sequence[Check]

    def run(
        self, plugin: object, options: Mapping[str, Any], excused: Mapping[str, str], on_result: OnResult | None
    ) -> list[Outcome]:
        """Return the outcome of every check; those that are `excused`, by claim, are skipped for a reason.

        The first is whether the class can be a plugin at all; if it cannot, the others are skipped.
        """
        reasons = {in_words(name): reason for name, reason in excused.items()}
        claims = [in_words(check.__name__) for check in self.checks]
        for name in reasons.keys() - set(claims):
            raise PluginError(f"there is no check '{name}'{did_you_mean(name, claims)}")
        subject = self.subject(plugin, **options)
        outcomes: list[Outcome] = []
        for claim, check in zip(claims, self.checks, strict=True):
            if claim in reasons:
                outcome = Outcome(claim, "skipped", f"excused: {reasons[claim]}")
            elif outcomes and outcomes[0].result == "failed":
                outcome = Outcome(claim, "skipped", f"not tried: {outcomes[0].sentence}")
            else:
                outcome = _outcome(claim, check, subject)
            outcomes.append(outcome)
            if on_result is not None:
                on_result(outcome)
        return outcomes


def in_words(name: str) -> str:
    """Return a check's name in words."""
    return name.replace("_", " ").strip()


def _outcome(claim: str, check: Check, subject: Subject) -> Outcome:
    began = time.perf_counter()

    def ended(result: Literal["passed", "failed", "skipped"], sentence: str) -> Outcome:
        words = " ".join(sentence.split()).removeprefix(f"{subject.owner}: ")
        return Outcome(claim, result, words, time.perf_counter() - began)

    try:
        with _quiet():
            remark = check(subject)
    except SkipError as reason:
        return ended("skipped", str(reason))
    except (FaultError, CswfError) as fault:
        return ended("failed", str(fault))
    except (Exception, SystemExit) as error:  # whatever a plugin's code raises is its outcome, not ours
        return ended("failed", f"{type(error).__name__}: {error}")
    return ended("passed", remark or "")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the engine's advice about step sizes to itself: the flows of a kit are too short to follow it."""
    log = logging.getLogger("cswf")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def needing(noun: str) -> Iterator[None]:
    """Take a `DataError`, a plugin's own word that it cannot use some data, as the reason to skip."""
    try:
        yield
    except DataError as error:
        raise SkipError(f"it does not take {noun}: {error}") from None


def _listed(claims: Sequence[str]) -> str:
    """Return the first of some claims by name, and how many others there are."""
    others = len(claims) - LISTED
    return ", ".join(claims[:LISTED]) + (f" and {others} others" if others > 0 else "")


def require(outcomes: Sequence[Outcome], owner: Owner, beside: Sequence[Check] = ()) -> list[Outcome]:
    """Return outcomes if none has failed; else raise `FailedChecksError` with all failures.

    It is raised too if no checks but those `beside` them, which look at nothing but the class, could be done.
    """
    failed = [outcome for outcome in outcomes if outcome.result == "failed"]
    if failed:
        claims: dict[str, list[str]] = {}
        for outcome in failed:  # a mistake that breaks many of them is told once
            claims.setdefault(outcome.sentence, []).append(outcome.claim)
        lines = [f"  - {_listed(broken)}: {sentence}" for sentence, broken in claims.items()]
        raise FailedChecksError("\n".join([f"{owner}: {len(failed)} of {len(outcomes)} checks failed", *lines]))
    formal = {in_words(check.__name__) for check in beside}
    own = [outcome for outcome in outcomes if outcome.claim not in formal]
    if all(outcome.result == "skipped" for outcome in own):
        raise FailedChecksError(f"{owner}: nothing could be checked: {own[0].sentence}")
    return list(outcomes)
