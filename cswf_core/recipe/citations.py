"""Citations: the papers behind a recipe, from the `references` of the plugins that it chooses."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from itertools import chain, count
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
class Citation:
    """A work to cite, as one BibTeX entry, and all that it is cited for."""

    type: str
    """`article`, `inproceedings`, …"""
    key: str
    """What \\cite takes."""
    fields: Mapping[str, str]
    """Values by lower-case name, without the outermost braces."""
    used_by: tuple[str, ...] = ()
    """`the method`, `metric fid`, …"""

    @classmethod
    def parse(cls, text: str) -> Citation:
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
            comma = re.match(r"\s*,|(?=\s*\})", text[at:])
            if comma is None:
                raise ValueError(f"it should have a comma or the last brace at {_near(text, at)}")
            at += comma.end()
        if text[at:].strip() != "}":
            raise ValueError(f"it should end with its last brace, and goes on: {text[at:].strip()[1:31]!r}")
        for name in ("author", "title"):
            if not fields.get(name):
                raise ValueError(f"it has no {name}")
        return cls(head[1].lower(), head[2], fields)

    @property
    def work(self) -> tuple[str, str]:
        """The title in plain letters, and the year: the same for two entries of one paper."""
        return re.sub(r"[\W_]+", "", self.fields["title"].lower()), self.fields.get("year", "")

    @property
    def bibtex(self) -> str:
        """The entry as BibTeX."""
        fields = ",\n".join(f"  {name} = {{{value}}}" for name, value in self.fields.items())
        return f"@{self.type}{{{self.key},\n{fields}\n}}"

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        entry = {"key": self.key, "type": self.type, "fields": dict(self.fields)}
        return {**entry, "used_by": list(self.used_by), "bibtex": self.bibtex}

    def __str__(self) -> str:
        """Return the entry as BibTeX below a line that says what it is for."""
        return f"% {', '.join(self.used_by).replace('@', ' at ')}\n{self.bibtex}"


def citations(*recipes: Recipe, metrics: Sequence[Choice] | None = None) -> list[Citation]:
    """Return all works that recipes and their variants rest on: each once, under a key of its own.

    These are the method, this program, and what plugins cite. `metrics` take the place of the recipes' own,
    where other scores are printed.
    """
    cited = [(Citation.parse(PAPER), "the method"), (Citation.parse(PROGRAM % version("cswf")), "the program")]
    for each in (each for recipe in recipes for each in (recipe, *recipe.variants.values())):
        used = each if metrics is None else attrs.evolve(each, metrics=tuple(metrics))
        for choice in used.choices().values():
            cited += [(work, f"{choice.plugin.owner.kind} {choice.name}") for work in references_of(choice)]
    works: dict[tuple[str, str], Citation] = {}
    for reference, user in cited:
        known = works.get(reference.work)
        if known is None:
            key = _fresh(reference.key, {work.key for work in works.values()})
            known = attrs.evolve(reference, key=key)
        if user not in known.used_by:
            works[reference.work] = attrs.evolve(known, used_by=(*known.used_by, user))
    return list(works.values())


def references_of(choice: Choice) -> list[Citation]:
    """Return the references of a plugin with its parameters; raise `PluginError` in its name for bad ones."""
    owner = choice.plugin.owner
    texts: object = choice.part.references
    if not isinstance(texts, (tuple, list)) or not all(isinstance(text, str) for text in texts):
        raise PluginError(f"{owner}: references must be a tuple of BibTeX entries, got {texts!r:.60}")
    entries = []
    for number, text in enumerate(texts, start=1):
        try:
            entries.append(Citation.parse(text))
        except ValueError as error:
            head = _HEAD.match(text)
            which = f"of {head[2]}" if head else f"of number {number}"
            raise PluginError(f"{owner}: references must be BibTeX entries; {which}, {error}") from None
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


def _fresh(key: str, taken: Collection[str]) -> str:
    """Return a key that no other work has: `key`, or `key-2` and so on."""
    numbered = (f"{key}-{number}" for number in count(2))
    return next(fresh for fresh in chain([key], numbered) if fresh not in taken)
