"""Citations: the papers behind a recipe, from the `references` of the plugins that it chooses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import attrs

from cswf_core.errors import PluginError
from cswf_core.recipe.recipe import Choice, Recipe

PAPER = r"""@inproceedings{du2023nonparametric,
  author = {Du, Chao and Li, Tianbo and Pang, Tianyu and Yan, Shuicheng and Lin, Min},
  title = {Nonparametric Generative Modeling with Conditional Sliced-{Wasserstein} Flows},
  booktitle = {International Conference on Machine Learning},
  year = {2023},
  doi = {10.48550/arXiv.2305.02164}
}"""
"""The paper of the method."""

PROGRAM = r"""@misc{cswf,
  author = {{The cswf authors}},
  title = {cswf: nonparametric image generation with Conditional Sliced-{Wasserstein} Flows},
  note = {Version %s}
}"""
"""This program, as CITATION.cff has it; the version is filled in."""

_HEAD = re.compile(r"\s*@([A-Za-z]+)\s*\{\s*([^\s,{}@%#\"\\~]+)\s*,")
_FIELD = re.compile(r"\s*([A-Za-z][\w-]*)\s*=\s*")


@attrs.frozen
class BibEntry:
    """One BibTeX entry."""

    type: str
    """`article`, `inproceedings`, …"""
    key: str
    """What \\cite takes."""
    fields: Mapping[str, str]
    """Values by lower-case name, without the outermost braces."""

    @classmethod
    def parse(cls, text: str) -> BibEntry:
        """Return the one entry in a text; raise `ValueError` with what is wrong."""
        head = _HEAD.match(text)
        if head is None:
            raise ValueError(f"it should begin with @article{{key, or the like, and begins with {text[:30]!r}")
        fields: dict[str, str] = {}
        at = head.end()
        while not re.match(r"\s*\}", text[at:]):
            field = _FIELD.match(text, at)
            if field is None:
                raise ValueError(f"it should have 'name = {{value}},' at {_near(text, at)}")
            value, at = _value(text, field.end())
            fields[field[1].lower()] = " ".join(value.split())
            comma = re.match(r"\s*,", text[at:])
            at += comma.end() if comma else 0
            if comma is None and not re.match(r"\s*\}", text[at:]):
                raise ValueError(f"it should have a comma or the last brace at {_near(text, at)}")
        if text[at:].strip() != "}":
            raise ValueError(f"it should end with its last brace, and goes on: {text[at:].strip()[1:31]!r}")
        lacking = [name for name in ("author", "title") if not fields.get(name)]
        if lacking:
            raise ValueError(f"it has no {lacking[0]}")
        return cls(head[1].lower(), head[2], fields)

    @property
    def work(self) -> tuple[str, str]:
        """The title in plain letters, and the year: the same for two entries of one paper."""
        return re.sub(r"[\W_]+", "", self.fields["title"].lower()), self.fields.get("year", "")

    def __str__(self) -> str:
        """Return the entry as BibTeX."""
        fields = ",\n".join(f"  {name} = {{{value}}}" for name, value in self.fields.items())
        return f"@{self.type}{{{self.key},\n{fields}\n}}"


@attrs.frozen
class Citation:
    """A work to cite, and all that it is cited for."""

    reference: BibEntry
    used_by: tuple[str, ...]
    """`the method`, `metric fid`, …"""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        fields = dict(self.reference.fields)
        entry = {"key": self.reference.key, "type": self.reference.type, "fields": fields}
        return {**entry, "used_by": list(self.used_by), "bibtex": str(self.reference)}

    def __str__(self) -> str:
        """Return the entry as BibTeX below a line that says what it is for."""
        return f"% {', '.join(self.used_by).replace('@', ' at ')}\n{self.reference}"


def citations(*recipes: Recipe, metrics: Sequence[Choice] | None = None) -> list[Citation]:
    """Return all works that recipes and their variants rest on: each once, under a key of its own.

    `metrics` take the place of the recipes' own, where other scores are printed.
    """
    used: dict[tuple[str, str], Citation] = {}
    keys: set[str] = set()
    for reference, user in (each for recipe in recipes for each in _references(recipe, metrics)):
        known = used.get(reference.work)
        if known is None:
            reference = attrs.evolve(reference, key=_fresh(reference.key, keys))
            keys.add(reference.key)
            used[reference.work] = Citation(reference, (user,))
        elif user not in known.used_by:
            used[reference.work] = attrs.evolve(known, used_by=(*known.used_by, user))
    return list(used.values())


def _references(recipe: Recipe, metrics: Sequence[Choice] | None) -> Iterator[tuple[BibEntry, str]]:
    """Yield references, each with what it is cited for: the method, this program, then plugin by plugin."""
    yield BibEntry.parse(PAPER), "the method"
    yield BibEntry.parse(PROGRAM % version("cswf")), "the program"
    for each in (recipe, *recipe.variants.values()):
        used = each if metrics is None else attrs.evolve(each, metrics=tuple(metrics))
        for choice in used.choices().values():
            for reference in references_of(choice):
                yield reference, f"{choice.plugin.owner.kind} {choice.name}"


def references_of(choice: Choice) -> list[BibEntry]:
    """Return the references of a plugin with its parameters; raise `PluginError` in its name for bad ones."""
    plugin = choice.plugin
    texts: object = choice.part.references
    if not isinstance(texts, (tuple, list)) or not all(isinstance(text, str) for text in texts):
        raise PluginError(f"{plugin.owner}: references must be a tuple of BibTeX entries, got {texts!r:.60}")
    entries = []
    for number, text in enumerate(texts, start=1):
        try:
            entries.append(BibEntry.parse(text))
        except ValueError as error:
            head = _HEAD.match(text)
            which = f"of {head[2]}" if head else f"of number {number}"
            raise PluginError(f"{plugin.owner}: references must be BibTeX entries; {which}, {error}") from None
    return entries


def _value(text: str, at: int) -> tuple[str, int]:
    """Return the value of a field that begins at a place, and the place behind it."""
    number = re.match(r"\d+", text[at:])
    if number is not None:
        return number[0], at + number.end()
    closing = {"{": "}", '"': '"'}.get(text[at : at + 1])
    if closing is None:
        raise ValueError(f"it should have a value in braces at {_near(text, at)}")
    depth = 0
    for end in range(at + 1, len(text)):
        letter = text[end]
        if letter == closing and depth == 0:
            return text[at + 1 : end], end + 1
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth < 0:
            break
    raise ValueError(f"braces do not match in {_near(text, at)}")


def _near(text: str, at: int) -> str:
    """Return what stands at a place of a text, for an error."""
    return repr(text[at : at + 30]) if at < len(text) else "its end"


def _fresh(key: str, taken: set[str]) -> str:
    """Return a key that no other work has: `key`, or `key-2` and so on."""
    number, fresh = 2, key
    while fresh in taken:
        number, fresh = number + 1, f"{key}-{number}"
    return fresh
