"""The recipe reader: YAML that was changed as a tree and as a text, and overrides on the command line."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml

from cswf_core.plugins import Registry
from cswf_core.recipe import RecipeError, builtin_recipes, load_recipe
from cswf_core.recipe.render import flattened, to_yaml, with_origins
from tests.fuzz import values
from tests.fuzz.damage import damaged, damaged_text
from tests.fuzz.oracle import Fault
from tests.fuzz.target import Target

WORDS = (
    "extends",
    "variants",
    "use",
    "metrics",
    "count",
    "steps",
    "7",
    "-1",
    "1e9",
    "1e-308",
    "[1, 2]",
    "{use: x}",
)


class RecipeTarget(Target):
    """Recipes: those that are built in, and those of the corpus, changed."""

    name = "recipe"
    share = 110_000

    def prepare(self) -> None:
        """Read the recipes, and load the plugins once."""
        self.registry = Registry.discover()
        own = {path.stem: path.read_text("utf-8") for path in sorted(self.corpus.glob("*.yaml"))}
        built_in = {name: source.path.read_text("utf-8") for name, source in sorted(builtin_recipes().items())}
        # Those that extend others take longer to read, and those of the corpus name every section.
        self.texts = [*own.values()] * 8 + [text for text in built_in.values() if "extends" not in text] * 2
        self.texts += [text for text in built_in.values() if "extends" in text and "variants" not in text][::4]
        self.trees = [yaml.safe_load(text) for text in self.texts]
        words = {word.strip(" -[]{},:#\"'") for text in self.texts for word in text.split()}
        self.words = [*sorted(words - {""}), *WORDS]

    def make(self, rng: random.Random) -> bytes:
        """Return a changed recipe, as a tree or as a text."""
        number = rng.randrange(len(self.texts))
        if rng.random() < 0.5:
            return values.bytes_of(values.changed(rng, self.trees[number], (rng.choice(self.trees),)))
        text = damaged_text(rng, self.texts[number], self.words, (rng.choice(self.texts),))
        content = text.encode("utf-8", "surrogatepass")
        return damaged(rng, content) if rng.random() < 0.1 else content

    def read(self, given: bytes) -> None:
        """Read a recipe; one that is good reads the same when it is written and read again."""
        path = self.folder / "recipe.yaml"
        path.write_bytes(given)
        check_recipe(path, (), self.registry)


def check_recipe(source: Path | str, overrides: tuple[str, ...], registry: Registry) -> None:
    """Load a recipe; check its mistakes, or that it stays the same when it is written and read again."""
    try:
        recipe = load_recipe(source, overrides, registry=registry)
    except RecipeError as error:
        for problem in error.problems:
            if problem.location.line < 1 or problem.location.column < 1:
                raise Fault(f"a mistake without a place: {problem}") from None
            if not problem.message or "\n" in problem.message:
                raise Fault(f"a mistake of several lines, or of none: {problem}") from None
        if not error.problems:
            raise Fault("a RecipeError without mistakes") from None
        raise
    with_origins(recipe)
    resolved = to_yaml(recipe.resolved())
    again: dict[str, Any] = yaml.safe_load(resolved)
    if not isinstance(again, dict):
        raise Fault(f"a resolved recipe is no mapping: {resolved[:200]}")
    try:
        second = to_yaml(load_recipe(_from_yaml(resolved), registry=registry).resolved())
    except RecipeError as error:
        raise Fault(f"a resolved recipe is refused: {error}") from None
    if second != resolved:
        raise Fault("a resolved recipe reads differently: " + _first_difference(resolved, second))


def _from_yaml(text: str) -> dict[str, Any]:
    from cswf_core.recipe.render import from_yaml

    mapping: dict[str, Any] = from_yaml(text)
    return mapping


def _first_difference(first: str, second: str) -> str:
    pairs = zip(first.splitlines(), second.splitlines(), strict=False)
    return next((f"{a!r} then {b!r}" for a, b in pairs if a != b), "one is longer")


class OverrideTarget(Target):
    """Overrides `key=value` of a recipe."""

    name = "override"
    share = 100_000

    def prepare(self) -> None:
        """Collect keys and values of recipes."""
        self.registry = Registry.discover()
        self.recipes = [self.corpus.parent / "recipe" / name for name in ("small.yaml", "sections.yaml")]
        self.keys: list[str] = []
        words: set[str] = set()
        for source in [*self.recipes, "digits", "toy-cswf", "cifar10-model"]:
            flat = flattened(load_recipe(source, registry=self.registry).resolved())
            self.keys += flat
            words |= set(flat.values())
        self.words = sorted(words)

    def make(self, rng: random.Random) -> tuple[int, tuple[str, ...]]:
        """Return a recipe's number, and one to three overrides."""
        return rng.randrange(len(self.recipes)), tuple(
            self._override(rng) for _ in range(rng.choice([1, 1, 2, 3]))
        )

    def _override(self, rng: random.Random) -> str:
        key = rng.choice(self.keys)
        parts = key.split(".")
        action = rng.randrange(8)
        if action == 0:
            key = ".".join(parts[: rng.randint(1, len(parts))])
        elif action == 1:
            key = f"{key}.{rng.choice([*values.KEYS, '0', '-1', '99999999999', '9' * 5000])}"
        elif action == 2:
            key = rng.choice([*values.TEXTS, "", ".", "a.", ".a", "a..b"])
        value = rng.choice(self.words)
        action = rng.randrange(6)
        if action < 3:
            value = values.text_of(values.anything(rng))
        elif action == 3:
            value = str(rng.choice(values.TEXTS))
        elif action == 4:
            value = damaged_text(rng, value, self.words)
        sign = "=" if rng.random() < 0.97 else rng.choice(["", "==", " = ", ":"])
        return f"{key}{sign}{value}".encode("utf-8", "replace").decode()

    def read(self, given: tuple[int, tuple[str, ...]]) -> None:
        """Load the recipe with the overrides."""
        check_recipe(self.recipes[given[0]], given[1], self.registry)

    def case(self, path: Path) -> tuple[int, tuple[str, ...]]:
        """Return overrides that are in a file, one a line."""
        return 0, tuple(path.read_text("utf-8").split("\n"))
