"""Sweeps: several runs of a recipe with different values, each in a folder of its own, compared at the end."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
from PIL import Image, ImageDraw, ImageFont

from cswf_core.errors import CswfError, DataError, OtherFormatError, RunError
from cswf_core.pictures import grid as pictures
from cswf_core.pictures.read import read_picture
from cswf_core.plugins import PluginFolders, Registry
from cswf_core.recipe import Location, Problem, Recipe, RecipeError, known_recipes, load_recipe
from cswf_core.recipe.provenance import refuse_changed_plugins
from cswf_core.recipe.render import short_paths, to_yaml
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.scores import read_scores
from cswf_core.scores.replicas import Group, grouped
from cswf_core.session.run import settle

RECORD = "sweep.json"
"""The file that lists a sweep's runs."""

FILES = (RECORD, "summary.json", "sweep.png", "flow.png")
"""Files of a sweep, beside the folders of its runs."""

MOST_RUNS = 256
"""Runs that a sweep may have."""

WIDEST = 2000
TALLEST = 640
"""Pixels of a row of runs' pictures; of such a picture, whose lower part is left out."""

LINE = 20
SPACE = 20
"""Pixels of a label's lines; around each picture."""


@attrs.frozen
class Trial:
    """One run of a sweep."""

    label: str
    folder: str
    recipe: Recipe

    @property
    def text(self) -> str:
        """The recipe as the run's recipe.yaml has it."""
        return to_yaml(self.recipe.resolved())

    @property
    def identity(self) -> tuple[str, str, str]:
        """Label, folder and SHA-256 of the recipe, by which a later call recognises the trial."""
        return self.label, self.folder, hashlib.sha256(self.text.encode()).hexdigest()


def plan(name: str, overrides: Sequence[str], *, plugins_dir: PluginFolders = None) -> list[Trial]:
    """Return the runs that a recipe and its overrides ask for, all of them valid.

    An override `key=a,b,c` asks for a run with each value, several for every combination. Without one, the
    recipe's own variants are run. Raises `RecipeError` with the mistakes of all runs.
    """
    registry = Registry.discover(plugins_dir)
    choices = [_values(text, number) for number, text in enumerate(overrides, start=1)]
    swept = [i for i, values in enumerate(choices) if len(values) > 1]
    if not swept:
        variants = load_recipe(name, overrides, registry=registry).variants
        if not variants:
            raise RunError(
                f"'{name}' has no variants to run; give key=a,b,c{_recipes_with_variants(name, registry)}"
            )
        return _trials(list(variants.items()))
    return _combined(name, choices, swept, registry)


def plan_seeds(
    name: str, overrides: Sequence[str], count: int, *, plugins_dir: PluginFolders = None
) -> list[Trial]:
    """Return `count` runs of a recipe, with its own seed and those that follow; one is enough.

    They are those of a sweep over these seeds, in the same folders.
    """
    if count > MOST_RUNS:
        raise RunError(f"{count:,} seeds are more than {MOST_RUNS}, the most runs a sweep may have")
    registry = Registry.discover(plugins_dir)
    first = load_recipe(name, overrides, registry=registry).seed
    others = [text for text in overrides if text.partition("=")[0] != "seed"]
    choices = [*([text] for text in others), [f"seed={first + number}" for number in range(count)]]
    return _combined(name, choices, [len(others)], registry)


def _combined(name: str, choices: list[list[str]], swept: Sequence[int], registry: Registry) -> list[Trial]:
    """Return a run for each combination of overrides, one from each list, named after the `swept` ones."""
    whole = [choices[i][0].partition("=")[0] for i in swept]
    for key in whole:
        if whole.count(key) > 1:
            raise RunError(f"'{key}' has several values in two places; write them in one")
    if math.prod(map(len, choices)) > MOST_RUNS:
        raise RunError(f"these values have more than {MOST_RUNS} combinations, the most a sweep may have")
    keys = short_paths(whole)
    loaded: list[tuple[str, Recipe]] = []
    problems: list[Problem] = []
    for texts in itertools.product(*choices):
        values = [texts[i].partition("=")[2] for i in swept]
        label = ", ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
        try:
            loaded.append((label, load_recipe(name, texts, registry=registry)))
        except RecipeError as error:
            problems += error.problems
    if problems:
        raise RecipeError(problems)
    if any(recipe.variants for _, recipe in loaded):
        raise RunError(f"'{name}' has variants of its own, which a sweep runs; give each key one value")
    return _trials(loaded)


def split(text: str) -> list[str]:
    """Split a text at its commas, but not at those within brackets, braces and quotes."""
    parts = [""]
    depth = 0
    # A quoted text, which can begin only where a value begins; or a single character.
    token_or_sign = r"""(?<![^\s,\[{:])(?:"(?:\\.|[^"\\])*"|'(?:''|[^'])*')|."""
    for token in re.findall(token_or_sign, text, re.DOTALL):
        depth = max(0, depth + (token in "[{") - (token in "]}"))
        if token == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def _values(text: str, number: int) -> list[str]:
    """Return an override once for each value that it has."""
    key, equals, value = text.partition("=")
    values = split(value)
    if not equals or len(values) == 1:
        return [text]
    if "" in values or len(set(values)) < len(values):
        fault = "a value is missing between commas" if "" in values else "a value is there twice"
        raise RecipeError([Problem(Location("command line", number, len(key) + 2), f"'{text}': {fault}")])
    return [f"{key}={value}" for value in values]


def _recipes_with_variants(name: str, registry: Registry) -> str:
    """Return the end of a sentence that points to the recipes with variants."""
    trees = {other: source.read([]) for other, source in known_recipes(registry).items() if other != name}
    names = [n for n, tree in trees.items() if tree is not None and tree.get("variants") is not None]
    return ", or use a recipe with variants" + (f" ({', '.join(names)})" if names else "")


def _trials(labelled: list[tuple[str, Recipe]]) -> list[Trial]:
    """Return trials in folders named after their labels, apart also where large and small letters are one."""
    trials: list[Trial] = []
    for label, recipe in labelled:
        plain = "=".join(part.strip() for part in "".join(map(_ascii, label)).split("="))
        name = re.sub(r"[^A-Za-z0-9._=+-]+", "-", plain)[:80].strip("-.=") or "run"
        taken = {*FILES, *(trial.folder.lower() for trial in trials)}
        names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
        trials.append(Trial(label, next(free for free in names if free.lower() not in taken), recipe))
    return trials


def _ascii(character: str) -> str:
    """Return a character in letters that every file system has: Greek ones by name, others without accents."""
    name = unicodedata.name(character, "")
    if name.startswith("GREEK"):
        letter = name.partition("LETTER ")[2].split(" ")[0]
        return letter.capitalize() if "CAPITAL" in name else letter.lower()
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    signs = {"×": "x", "·": "*", "−": "-", "–": "-", "—": "-", "…": "...", "√": "sqrt", "∞": "inf"}
    return signs.get(character, plain or ("" if unicodedata.combining(character) else "?"))


@attrs.frozen
class Sweep:
    """Trials, run one after the other into folders below one folder.

    Which ones are done is read from those folders alone, so a sweep that was killed can go on.
    """

    trials: Sequence[Trial]
    directory: RunFolder

    @contextmanager
    def claimed(self, *, force: bool) -> Iterator[None]:
        """Keep the folder from other sweeps; it is free, or has this sweep, or `force` removes an earlier one.

        What was made is taken back in the end if no run has begun.
        """
        self.directory.refuse_if_taken(force=True)
        self.directory.make()
        with self.directory.held():
            is_new = not self.directory.file(RECORD).exists()
            try:
                self._prepare(force=force)
                yield
            finally:
                if is_new and not self.is_begun():
                    self.directory.clear((RECORD,))
                self.directory.withdraw()

    def _prepare(self, *, force: bool) -> None:
        """Refuse a folder with something else in it, remove an earlier sweep if wanted, write the record."""
        earlier = self._earlier()
        again = {trial.identity for trial in self.trials} >= set(earlier)
        free = not any(self.directory.path.iterdir())
        if not force and not (again if earlier else free):
            raise RunError(
                f"{self.directory.path} is not empty and has no sweep with these values to go on with; "
                "give another --out, or --force to replace what a sweep leaves"
            )
        for trial in self.trials:
            if force or not self.is_done(trial):
                known = force or trial.identity in earlier
                self.run_of(trial).refuse_if_taken(force=known, reading=trial.recipe.path)
        if force:
            folders = sorted({identity[1] for identity in earlier} | {t.folder for t in self.trials})
            self._clear([RunFolder(self.directory.path / folder) for folder in folders])
        self.save()

    def _clear(self, runs: Sequence[RunFolder]) -> None:
        """Remove an earlier sweep and its runs; raise `RunError`, and remove nothing, if one is going on."""
        linked = [run for run in runs if run.path.is_symlink()]
        own = [run for run in runs if run.path.is_dir() and run not in linked]
        with ExitStack() as held:
            for run in own:
                held.enter_context(run.held())
            for run in linked:  # what lies behind is no run of this sweep
                run.path.unlink()
            for run in own:
                run.clear()
                with suppress(OSError):  # something else is in it
                    run.path.rmdir()
            self.directory.clear(FILES)

    def run(self, launch: Callable[[Recipe, RunFolder], object], tell: Callable[[str], object]) -> None:
        """Launch trials that are not done; `tell` is handed a line before each. An error names its trial."""
        for number, trial in enumerate(self.trials, start=1):
            title = f"[{number}/{len(self.trials)}] {trial.label}"
            if self.is_done(trial):
                settle(self.run_of(trial))
                tell(f"{title}: done before")
                continue
            tell(title)
            try:
                launch(trial.recipe, self.run_of(trial))
            except CswfError as error:
                first, *others = str(error).split("\n")
                named = RunError(f"{trial.label}: {first}", *others)
                named.exit_status = error.exit_status
                raise named from error
            finally:
                self.save()

    def draw(self) -> None:
        """Put the pictures of all runs together: sweep.png, and flow.png if there are runs with one."""
        runs = list(map(self.run_of, self.trials))
        self.directory.write("sweep.png", pictures.png(collage(_own_pictures(runs, "samples.png"), WIDEST)))
        flows = [run for run in runs if run.file("flow.png").exists()]
        if flows:
            self.directory.write("flow.png", pictures.png(collage(_own_pictures(flows, "flow.png"), 0)))

    def summarise(self) -> list[Group]:
        """Write summary.json and return its groups: finished runs that differ in their seed only, together."""
        runs = []
        for trial in self.trials:
            with suppress(OSError, ValueError, OtherFormatError):  # without good scores it has no part in it
                run = self.run_of(trial)
                run.scores = read_scores(run.file("metrics.json"))
                run.recipe = trial.recipe.resolved()
                if self.is_done(trial):
                    runs.append(run)
        groups = grouped(runs)
        folders = [[run.path.name for run in group.runs] for group in groups]
        plain = [group.plain() | {"folders": names} for group, names in zip(groups, folders, strict=True)]
        self.directory.write_json("summary.json", plain)
        return groups

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of sweep.json, one for each run, in order."""
        rows = []
        for trial in self.trials:
            facts = None
            status = "planned"
            try:
                facts = self.run_of(trial).facts()
            except RunError:  # whoever goes on with that run is told why
                status = "damaged"
            status = status if facts is None else facts.status
            told = {key: getattr(facts, key, None) for key in ("seconds", "metrics", "samples_sha256")}
            row = {"label": trial.label, "folder": trial.folder, "status": status, **told}
            rows.append({**row, "recipe_sha256": trial.identity[2]})
        return rows

    def save(self) -> None:
        """Write sweep.json."""
        self.directory.write_json(RECORD, self.rows())

    def run_of(self, trial: Trial) -> RunFolder:
        """Return the folder of one run, with its label."""
        return RunFolder(self.directory.path / trial.folder, trial.label)

    def is_done(self, trial: Trial) -> bool:
        """Say whether this very recipe has been run to its end before."""
        directory = self.run_of(trial)
        recipe = directory.file("recipe.yaml")
        with suppress(OSError, ValueError):
            record = directory.facts() if directory.done and recipe.is_file() else None
            if record is not None and recipe.read_text(encoding="utf-8") == trial.text:
                chosen = trial.recipe.choices()
                plugins = [
                    {**facts, "kind": chosen[path].plugin.owner.kind}
                    for path, facts in record.plugins.items()
                    if path in chosen
                ]
                refuse_changed_plugins(trial.recipe, plugins, str(directory.path))
                return True
        return False

    def is_begun(self) -> bool:
        """Say whether any run has been begun."""
        return any(self.run_of(trial).facts() is not None for trial in self.trials)

    def _earlier(self) -> list[tuple[str, str, str]]:
        """Return the identities of the trials that the folder's sweep.json lists; none if it is no sweep's."""
        rows = self.directory.read_json(RECORD)
        try:
            trials = [(str(row["label"]), str(row["folder"]), str(row["recipe_sha256"])) for row in rows]
        except (TypeError, KeyError):
            return []
        return [t for t in trials if Path(t[1]).name == t[1] and t[1] not in ("", "..")]  # never outside


def collage(drawn: Sequence[tuple[str, Image.Image]], widest: int) -> Image.Image:
    """Lay pictures out in rows of about one length and `widest` pixels at most, each below its label."""
    width = max(140, *(picture.width for _, picture in drawn))
    cells = [(_lines(label, width), picture) for label, picture in drawn]
    across = max(1, (widest - SPACE) // (width + SPACE))
    across = math.ceil(len(cells) / math.ceil(len(cells) / across))
    rows = [cells[i : i + across] for i in range(0, len(cells), across)]
    heads = [max(len(lines) for lines, _ in row) * LINE + 6 for row in rows]
    heights = [max(picture.height for _, picture in row) for row in rows]
    size = (SPACE + across * (width + SPACE), SPACE + sum(heads) + sum(heights) + SPACE * len(rows))
    canvas = Image.new("RGB", size, pictures.BACKGROUND)
    pen = ImageDraw.Draw(canvas)
    y = SPACE
    for row, head, height in zip(rows, heads, heights, strict=True):
        for c, (lines, picture) in enumerate(row):
            x = SPACE + c * (width + SPACE)
            for i, line in enumerate(reversed(lines)):
                middle = y + head - 6 - LINE * i - LINE // 2
                pen.text((x + width // 2, middle), line, pictures.INK, _font(), anchor="mm")
            canvas.paste(picture, (x + (width - picture.width) // 2, y + head))
        y += head + height + SPACE
    return canvas


def _own_pictures(runs: Sequence[RunFolder], name: str) -> list[tuple[str, Image.Image]]:
    """Return a picture that each run has drawn, with the run's label."""
    drawn = []
    for run in runs:
        try:
            picture = read_picture(run.file(name), "RGB")
        except DataError as error:
            raise RunError(f"{error}; remove the run's folder to run it again") from error
        upper = picture.crop((0, 0, picture.width, min(picture.height, TALLEST)))
        drawn.append((run.label, upper))
    return drawn


@functools.cache
def _font() -> ImageFont.FreeTypeFont:
    """Return a font that has Greek letters, as labels do."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf"), 14)


def _lines(label: str, width: int) -> list[str]:
    """Break a label into lines of at most `width` pixels: between words, or within one that is too long."""
    wrapped = (textwrap.wrap(label, letters) for letters in range(len(label), 0, -1))
    return next((lines for lines in wrapped if max(map(_font().getlength, lines), default=0) <= width), [label])
