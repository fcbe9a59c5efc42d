"""The recipe reader: YAML that was changed as a tree and as a text, and overrides on the command line."""

from __future__ import annotations

from pathlib import Path

import yaml
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from cswf_core.plugins import Registry
from cswf_core.recipe import RecipeError, builtin_recipes, load_recipe
from cswf_core.recipe.render import flattened, from_yaml, to_yaml, with_origins
from tests.fuzz import values
from tests.fuzz.files import damaged, damaged_text
from tests.fuzz.oracle import Fault
from tests.fuzz.target import CORPUS, Target
from tests.fuzz.values import chance, pick

WORDS = (
    *("extends", "variants", "use", "metrics", "count", "steps", "7", "-1", "1e9", "1e-308"),
    *("[1, 2]", "{use: x}"),
)


class RecipeTarget(Target):
    """Recipes: those that are built in, and those of the corpus, changed."""

    name = "recipe"

    def prepare(self) -> None:
        self.registry = Registry.discover()
        own = [content.decode() for content in self.seeds.values()]
        built_in = [source.path.read_text("utf-8") for _, source in sorted(builtin_recipes().items())]
        # Those that extend others take longer to read, and those of the corpus name every section.
        self.texts = own * 8 + [text for text in built_in if "extends" not in text] * 2
        self.texts += [text for text in built_in if "extends" in text and "variants" not in text][::4]
        parsed = {text: yaml.safe_load(text) for text in self.texts}
        self.trees = [parsed[text] for text in self.texts]
        words = {word.strip(" -[]{},:#\"'") for text in self.texts for word in text.split()}
        self.words = [*sorted(words - {""}), *WORDS]

    def make(self, draw: DrawFn) -> bytes:
        if draw(st.booleans()):
            return values.bytes_of(values.changed(draw, pick(draw, self.trees), [pick(draw, self.trees)]))
        text = damaged_text(draw, pick(draw, self.texts), self.words, [pick(draw, self.texts)])
        content = text.encode("utf-8", "surrogatepass")
        return damaged(draw, content) if chance(draw, 0.1) else content

    def read(self, given: bytes) -> None:
        path = self.folder / "recipe.yaml"
        path.write_bytes(given)
        check_recipe(path, (), self.registry)

    def case(self, path: Path) -> bytes:
        return path.read_bytes()


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
    if not isinstance(yaml.safe_load(resolved), dict):
        raise Fault(f"a resolved recipe is no mapping: {resolved[:200]}")
    try:
        second = to_yaml(load_recipe(from_yaml(resolved), registry=registry).resolved())
    except RecipeError as error:
        raise Fault(f"a resolved recipe is refused: {error}") from None
    if second != resolved:
        raise Fault(f"a resolved recipe reads differently:\n{resolved}\nthen\n{second}")


class OverrideTarget(Target):
    """Overrides `key=value` of a recipe."""

    name = "override"

    def prepare(self) -> None:
        self.registry = Registry.discover()
        self.recipes = [CORPUS / "recipe" / name for name in ("small.yaml", "sections.yaml")]
        sources = [*self.recipes, "digits", "toy-cswf", "cifar10-model"]
        flat = [flattened(load_recipe(source, registry=self.registry).resolved()) for source in sources]
        self.keys = [key for each in flat for key in each]
        self.words = sorted({word for each in flat for word in each.values()})

    def make(self, draw: DrawFn) -> tuple[int, tuple[str, ...]]:
        number = draw(st.integers(0, len(self.recipes) - 1))
        return number, tuple(self._override(draw) for _ in range(draw(st.integers(1, 3))))

    def _override(self, draw: DrawFn) -> str:
        key = pick(draw, self.keys)
        match draw(st.integers(0, 7)):
            case 0:
                parts = key.split(".")
                key = ".".join(parts[: draw(st.integers(1, len(parts)))])
            case 1:
                key = f"{key}.{pick(draw, [*values.KEYS, '0', '-1', '99999999999', '9' * 5000])}"
            case 2:
                key = pick(draw, [*values.TEXTS, "", ".", "a.", ".a", "a..b"])
        word = pick(draw, self.words)
        match draw(st.integers(0, 5)):
            case 0 | 1 | 2:
                word = values.text_of(draw(values.anything))
            case 3:
                word = draw(values.texts)
            case 4:
                word = damaged_text(draw, word, self.words)
        sign = pick(draw, ("", "==", " = ", ":")) if chance(draw, 0.03) else "="
        return f"{key}{sign}{word}".encode("utf-8", "replace").decode()

    def read(self, given: tuple[int, tuple[str, ...]]) -> None:
        check_recipe(self.recipes[given[0]], given[1], self.registry)

    def case(self, path: Path) -> tuple[int, tuple[str, ...]]:
        return 0, tuple(path.read_text("utf-8").split("\n"))
