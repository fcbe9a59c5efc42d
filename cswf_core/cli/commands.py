"""Every command with its arguments, options and help; its work is in a module that is imported to do it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click import argument, option
from click.shell_completion import CompletionItem, get_completion_class

from cswf_core.cli import deferred, options, signals
from cswf_core.cli.options import PATH, CommandGroup, Decorator, WholeNumber, flag


def do(module: str, name: str, *, reads: bool) -> Callable[..., Any]:
    """Return the function of a module of this package; one that only `reads` does without PyTorch."""
    if reads:
        deferred.defer()
    elif deferred.is_deferred():
        deferred.load()
    work: Callable[..., Any] = getattr(signals.imported(f"cswf_core.cli.{module}"), name)
    return work


def done_by(module: str, *, reads: bool = False) -> Decorator:
    """Have a command's work done by the function of its name in a module, which is imported to do it."""

    def declare(described: Callable[..., Any]) -> Callable[..., Any]:
        return wraps(described)(lambda **chosen: do(module, described.__name__, reads=reads)(**chosen))

    return declare


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cswf")
def cli() -> None:
    """Nonparametric image generation with Conditional Sliced-Wasserstein Flows.

    Try: cswf run digits
    """


@cli.command(short_help="Run a recipe and leave its samples in a folder.")
@options.recipe_with_overrides
@options.out("Folder for the results.  [default: runs/NAME, or runs/NAME-2 and so on if that is taken]")
@options.sharing
@flag("--force", help="Replace an earlier run in the folder, runs/NAME without --out.")
@flag("--resume", help="Go on with the same recipe's run in --out, if it has one; else begin.")
@option(
    "--seeds",
    type=WholeNumber(1),
    help="Run it with so many seeds, the recipe's own and those that follow, in a new runs/NAME-seeds, or in "
    "--out; if that has some of these runs already, the others are run.",
)
@options.going_on
@done_by("running")
def run() -> None:
    """Run RECIPE, a name of `cswf recipes` or a path, and leave its samples in a folder.

    KEY=VALUE changes a value of the recipe: schedule.steps=50, outputs.snapshots.0=1.
    """


@cli.command(short_help="Go on with a run that was stopped or killed, bit for bit.")
@argument("run", metavar="RUN", type=PATH)
@options.sharing
@options.going_on
@done_by("running")
def resume() -> None:
    """Go on with RUN, the folder of a run that was stopped or killed, from its newest checkpoint.

    The result is the same, bit for bit, as if it had never stopped. What a run does is in its recipe.yaml; if
    that has been changed, or the data have, this says what and does nothing.
    """


@cli.command(short_help="Teach a run that is done new data; its particles flow on.")
@argument("run", metavar="RUN", type=PATH)
@option(
    "--data",
    required=True,
    metavar="NEW",
    shell_complete=options.plugins_of("dataset", files=True),
    help="The new samples: as in a recipe, digits or '{use: digits, classes: [7]}'; a folder of pictures; an "
    ".npz file.",
)
@option("--steps", type=WholeNumber(1), help="Steps of each stage.  [default: as in the run]")
@option("--schedule", metavar="K,K,…", help="Steps of each stage one by one; 0 passes it over: 0,0,100,100.")
@options.out("Folder for the results.  [default: RUN-updated, or RUN-updated-2 and so on if that is taken]")
@options.sharing
@flag("--force", help="Replace an earlier run in the folder that --out names.")
@options.going_on
@done_by("running")
def update() -> None:
    """Teach RUN, the folder of a run that is done, NEW data: its particles flow on, in a new folder.

    New samples are added to the counts of the run's data, and particles come with them in proportion. What was
    learned before is not counted again. RUN stays as it is.
    """


@cli.command(short_help="Draw new samples from the model that a run has saved.")
@argument("path", metavar="RUN|MODEL", type=PATH)
@option("--count", type=WholeNumber(1), help="How many samples.  [default: 100]")
@option("--label", metavar="CLASS", help="Of one class, by name or by number from 0.")
@option("--labels", metavar="CLASS:N,…", help="So many of each class: 0:100,7:50.")
@option("--vector", metavar="Y,…", help="Of one condition vector, any numbers: 0.3,0.7.")
@options.seed
@option(
    "--out",
    type=click.Path(),
    help="FILE.png, FILE.npz, a folder for one PNG each, or FOLDER/ for shards of any number of samples.  "
    "[default: samples-offline.npz and .png in RUN; samples.npz and .png here for a MODEL]",
)
@options.replace
@options.sharing
@options.accept_changed_plugins
@options.plugins_dir
@done_by("models")
def sample() -> None:
    """Draw samples from a saved model: RUN, a run with model.save=true, or MODEL, the folder `model` in it.

    Without --label or --labels, classes come in the data's proportions. The same seed gives the same samples,
    and the first of many are those of few. `cswf eval RUN --samples offline` scores those of a run.

    With --out FOLDER/, which ends in a slash, samples are written in shards of 8,192, in constant memory, and a
    call that was interrupted goes on. With --devices, or started by torchrun, processes share the shards.
    """


@cli.command(short_help="Complete pictures with a saved model.")
@argument("path", metavar="RUN|MODEL", type=PATH)
@argument("images", metavar="[IMAGE]...", nargs=-1, type=PATH)
@option(
    "--held-out",
    type=WholeNumber(1),
    help="Complete the first so many images that the model's data hold out, instead of pictures from a disk.",
)
@option(
    "--mask",
    type=PATH,
    help="A picture, black where pixels are to be filled in.  [default: what the model's recipe says]",
)
@option("--count", type=WholeNumber(1), default=5, show_default=True, help="Completions of each image.")
@flag("--resize", help="Bring images of another size to the model's.")
@options.seed
@options.out("FILE.png, FILE.npz, or a folder for one PNG each.  [default: completions.npz and .png here]")
@options.replace
@options.computing
@options.accept_changed_plugins
@options.plugins_dir
@done_by("models")
def inpaint() -> None:
    """Complete images with a saved model whose condition sees a part of an image: pictures, or held-out data.

    What is seen is what the model's recipe says: some of the pixels, a small version, the luminance. The
    picture shows what is seen, the completions and the original, a row for each image.
    """


@cli.command(short_help="Say what a saved model is, and what it cost.")
@argument("path", metavar="RUN|MODEL", type=PATH)
@options.json
@flag("--check", help="Read all of it; compare checksums, plugins and directions.")
@options.accept_changed_plugins
@options.plugins_dir
@done_by("models")
def inspect() -> None:
    """Say what a saved model is: of which recipe and data, what can be asked of it, and what it cost."""


@cli.command(short_help="Run a recipe with several values of a key, and compare the results.")
@options.recipe
@argument("overrides", nargs=-1, metavar="[KEY=VALUE]... [KEY=A,B,C]...")
@options.out(
    "Folder for the results; if it has this sweep already, what is missing is run."
    "  [default: runs/NAME-sweep, or runs/NAME-sweep-2 and so on if that is taken]"
)
@options.computing
@flag("--force", help="Replace an earlier sweep in the folder, runs/NAME-sweep without --out.")
@options.plugins_dir
@done_by("running")
def sweep() -> None:
    """Run RECIPE once for each of several values, and draw the results side by side.

    KEY=A,B,C gives the values, as in condition.amplifier=0,2,10; several such keys give every combination.
    Without one, the variants that the recipe itself lists are run. KEY=VALUE holds for all runs.
    """


def scoring_options(usual: str) -> Decorator:
    """Return the options of a `Scoring`: how samples are scored, and against what; `usual` are its metrics."""
    return options.together(
        option(
            "--against",
            multiple=True,
            metavar="DATA[:SPLIT]",
            shell_complete=options.plugins_of("dataset", files=True),
            help="Real samples: a data set (both its splits, or :train or :test), a folder of pictures, an "
            ".npz file; may be given several times.  [default: the data of the run]",
        ),
        option(
            "--metric",
            "metrics",
            multiple=True,
            metavar="NAME",
            shell_complete=options.plugins_of("metric"),
            help="A metric, as in a recipe: fid, or '{use: fid, mode: clean}'; may be given several times.  "
            f"[default: {usual}]",
        ),
        option("--count", type=WholeNumber(1), metavar="N", help="Score at most N samples.  [default: 50,000]"),
        option(
            "--real-count",
            type=WholeNumber(2),
            metavar="N",
            help="Compare with at most N real samples of each split, evenly spread.  [default: all]",
        ),
        option(
            "--limit",
            metavar="SIZE",
            callback=options.size,
            help="Memory that the images of a file or folder may take as they are, such as 20GB.  "
            "[default: a quarter of this machine's]",
        ),
        option(
            "--resize",
            type=WholeNumber(1, 8192),
            metavar="N",
            help="Resize the images of folders and files to N×N pixels by Pillow's bicubic filter.",
        ),
        flag("--rgb", help="Convert grey images of folders and files to RGB."),
        option("--weights", type=PATH, help="The feature network's file."),
        flag("--no-download", help="Download neither the feature network nor published statistics."),
        option(
            "--seed",
            type=WholeNumber(0),
            help="Of the evaluation's own choices: subsets, directions, classifiers.  "
            "[default: evaluate.seed of the run's recipe, else 0]",
        ),
        flag("--no-copy-check", help="Do not look for copies, unless a metric is named that does."),
    )


@cli.command(short_help="Score a run, or a folder or file of images that any program made.")
@argument("path", metavar="RUN|FOLDER|FILE.npz", type=PATH)
@scoring_options("those of the run's recipe, else fid")
@option(
    "--samples",
    "kind",
    type=click.Choice(["batched", "offline"]),
    default="batched",
    show_default=True,
    help="Which samples of a run: its particles, or those carried along or sampled from its saved model.",
)
@options.out(
    "Folder for scores, figures and page.  [default: the run's own; for a folder or file NAME, runs/NAME-eval]"
)
@flag("--save-features", help="Also write the features of all images, as .npy files.")
@option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "markdown", "latex"]),
    help="Print the scores as a table for a terminal, as CSV, Markdown or LaTeX.  [default: table]",
)
@options.computing
@options.listing
@done_by("scoring")
def eval() -> None:
    """Score samples: those of a RUN, a FOLDER of pictures, or a FILE.npz of images.

    Scores of a run are written to its metrics.json and into its report.html; those of others, or with --out,
    into a folder of their own. Folders in a FOLDER are classes; pictures of different sizes need --resize, and
    grey ones beside colour ones --rgb.
    """


@cli.command(short_help="Score two sets of samples alike, and say which is better beyond noise.")
@argument("first", metavar="A", type=PATH)
@argument("second", metavar="B", type=PATH)
@scoring_options("fid, kid and precision-recall for images, else sliced-wasserstein")
@options.computing
@options.listing
@done_by("scoring")
def compare() -> None:
    """Score A and B alike and say which is better, with intervals.

    A and B are runs, folders of pictures or .npz files: as many samples of each, the same real samples, the
    same random choices. Of two runs, the real samples are their data, which must be the same.
    """


@cli.command(short_help="Print scores of runs as a table to paste: Markdown, LaTeX, CSV.")
@argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@option(
    "--format",
    type=click.Choice(["table", "csv", "markdown", "latex", "json"]),
    default="table",
    show_default=True,
    help="What to write.",
)
@option(
    "--score",
    "scores",
    multiple=True,
    metavar="NAME",
    help="A score, such as fid or fid_test; may be given several times.  [default: all but details]",
)
@option(
    "--against", type=click.Choice(["train", "test"]), help="Only scores against this split.  [default: both]"
)
@flag("--bibtex", help="Write BibTeX of the works behind these runs, and no table.")
@options.out("The file to write.  [default: print it]")
@options.replace
@options.plugins_dir
@done_by("results", reads=True)
def table() -> None:
    """Print the scores of RUNs as a table, with a caption that says how they were computed.

    RUN is the folder of a run, of a sweep for all of its runs, or one with just a metrics.json. Runs that
    differ in their seed only are one row: mean ± standard deviation. What cannot be compared is told.
    """


@cli.command(short_help="Write a run's page anew, or one page that compares several runs.")
@argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@options.out("The page to write.  [default: RUN/report.html for one run, report.html for several]")
@flag("--force", help="Replace a file that is not a page of cswf report.")
@done_by("results")
def report() -> None:
    """Write the page of a RUN anew, or one page that compares several.

    RUN is the folder of a run, of a sweep for all of its runs, or of an evaluation. The page is one file that
    needs no network, only a browser.
    """


@cli.command(short_help="Time a step, part by part, beside a naive PyTorch step.")
@argument("words", nargs=-1, metavar="[RECIPE] [KEY=VALUE]...", shell_complete=options.complete_recipes)
@option("--particles", type=WholeNumber(1), help="M.  [default: 50000; on a CPU 2000]")
@option("--data", type=WholeNumber(1), help="N.  [default: 100000; on a CPU 4000]")
@option("--directions", type=WholeNumber(1), help="H.  [default: 10000; on a CPU 500]")
@option("--shape", metavar="CxHxW", help="Of the images; or d of points.  [default: 3x32x32; on a CPU 3x16x16]")
@option("--resolution", metavar="K", help="Grid of the stage, K or HxW.  [default: that of the images]")
@option("--patch", type=WholeNumber(1), help="Side of the patches.  [default: 7]")
@option("--classes", type=WholeNumber(0), help="Classes, for the condition one-hot.  [default: 0]")
@option(
    "--projection",
    metavar="NAME",
    shell_complete=options.plugins_of("projection"),
    help="Plugin that draws directions.  [default: conv-stack]",
)
@option(
    "--cdf",
    metavar="NAME",
    shell_complete=options.plugins_of("cdf"),
    help="Plugin that estimates distributions.  [default: histogram]",
)
@option("--precision", metavar="NAME", help="Of particles.precision.  [default: auto]")
@option("--reuse", type=WholeNumber(1), help="Steps for which directions are kept.  [default: 1]")
@option("--seed", type=WholeNumber(0), help="Of random data and directions.  [default: 0]")
@option("--stage", type=WholeNumber(1), help="Which stage of RECIPE, from 1.  [default: the last]")
@option("--steps", type=WholeNumber(1), default=10, show_default=True, help="Steps to time.")
@option("--warmup", type=WholeNumber(0), default=3, show_default=True, help="Steps before those.")
@option("--naive/--no-naive", default=True, help="Whether to time a naive PyTorch step beside it.")
@options.json
@option("--out", type=PATH, metavar="FILE", help="Also write the JSON into a file.")
@options.device
@options.devices
@options.memory_limit
@options.plugins_dir
@done_by("bench")
def bench() -> None:
    """Time a step of the engine, part by part, beside a naive PyTorch step.

    Without RECIPE the data are random images, and the options say how many and how large. With one, its own
    data and one of its stages are timed. KEY=VALUE changes a value of the recipe, as in cdf.bins=512.

    With --devices, several processes take each step together, and waiting for each other is a part of it.
    """


@cli.group(cls=CommandGroup, short_help="Pack images into shards that are mapped into memory; check them.")
def data() -> None:
    """Pack images into shards: files that are mapped into memory as they lie, with checksums.

    Recipes read them with data: {use: packed, path: FOLDER}.
    """


@data.command(short_help="Write a data set's images into a folder of shards.")
@argument("source", shell_complete=options.complete_recipes)
@argument("out", type=PATH)
@argument("parameters", nargs=-1, metavar="[KEY=VALUE]...")
@option(
    "--shard-size",
    default="256MB",
    show_default=True,
    metavar="N|SIZE",
    help="Images in a shard at most, such as 10000; or its size, such as 64MB or 1GB.",
)
@option(
    "--seed",
    type=WholeNumber(0),
    help="Which images are held out or taken, where that is drawn.  [default: that of the recipe, else 0]",
)
@flag("--force", help="Replace the shards of an earlier pack in OUT.")
@options.quiet
@options.plugins_dir
@done_by("data")
def pack() -> None:
    """Write the images of SOURCE, with labels and held-out images, into shards in the folder OUT.

    SOURCE is a data set, with its parameters as KEY=VALUE; a recipe, whose `data` is taken, with its keys; a
    folder of pictures (say size=64 too), a folder of shards, or an .npz file. A block of images is in
    memory at a time, where the source allows it. An interrupted pack can be called again.
    """


@data.command("check", short_help="Read a folder of shards and compare its checksums.")
@argument("folder", type=PATH)
@options.quiet
@done_by("data")
def check_shards() -> None:
    """Read all files of FOLDER, which `cswf data pack` has written, and compare their checksums."""


@data.command(short_help="Say what a folder of shards has.")
@argument("folder", type=PATH)
@options.json
@done_by("data")
def info() -> None:
    """Say what FOLDER has, which `cswf data pack` has written; only its manifest is read."""


@cli.command(short_help="Validate a recipe without running it.")
@options.recipe_with_overrides
@options.plugins_dir
@done_by("reading", reads=True)
def check() -> None:
    """Validate RECIPE without running it; every mistake is reported as FILE:LINE:COL: message."""


@cli.command(short_help="Print a recipe as it will run, and where every value came from.")
@options.recipe_with_overrides
@options.listing
@done_by("reading", reads=True)
def show() -> None:
    """Print RECIPE as it will run, every default filled in, and where each value came from."""


@cli.command(short_help="Say whether this installation can work, and what is missing.")
@options.listing
@done_by("doctor")
def doctor() -> None:
    """Say whether this installation can work: packages, devices, plugins, data, and room on the disks.

    Each line begins with ok, missing (not everybody needs it) or broken, and says what to do. The exit status
    is 1 if anything is broken, else 0.
    """


@cli.command(short_help="Print the script that lets bash, zsh or fish complete commands.")
@argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options, recipes, plugins and files.

    \b
    bash: cswf completion bash > ~/.local/share/bash-completion/completions/cswf
    zsh:  cswf completion zsh > "${fpath[1]}/_cswf"
    fish: cswf completion fish > ~/.config/fish/completions/cswf.fish

    It takes effect in new shells.
    """
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(cli, {}, "cswf", "_CSWF_COMPLETE").source(), nl=False)


@cli.command(short_help="Print BibTeX of the works that a recipe rests on.")
@options.recipe_with_overrides
@options.listing
@done_by("reading", reads=True)
def cite() -> None:
    """Print BibTeX of the method, this program, and what RECIPE uses: its data, parts and metrics.

    A run is cited by its own recipe: cswf cite runs/NAME/recipe.yaml.
    """


@cli.command(short_help="List the built-in recipes and those of packages.")
@options.listing
@done_by("reading", reads=True)
def recipes() -> None:
    """List the built-in recipes, and those of packages as PACKAGE:RECIPE."""


@cli.command(short_help="Print the JSON Schema of recipes, for editors.")
@options.plugins_dir
@done_by("reading", reads=True)
def schema() -> None:
    """Print the JSON Schema of recipes, with all plugins that are loaded."""


@cli.command(short_help="Begin a plugin as a small package, with its test and recipe.")
@argument(
    "kind",
    metavar="KIND",
    shell_complete=options.one_of(
        "projection", "cdf", "condition", "schedule", "coordinates", "dataset", "metric", "observer"
    ),
)
@argument("name")
@argument("folder", metavar="[DIR]", type=PATH, required=False)
@done_by("reading", reads=True)
def new() -> None:
    """Begin a plugin of KIND, called NAME, as a package in DIR (cswf-NAME if left out).

    KIND is projection, cdf, condition, schedule, coordinates, dataset, metric or observer. The package works as
    it is: one file with a small plugin, its recipe, a test that runs the kit, and a README with the commands.
    """


class NamesOrCommands(CommandGroup):
    """A group whose commands have a name each, and where any other word is the name of a plugin."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, or one that shows the plugin of that name."""
        return super().get_command(ctx, cmd_name) or _showing(cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return commands and plugins that begin so, and options."""
        return super().shell_complete(ctx, incomplete) + options.plugins_of()(ctx, self.params[0], incomplete)


@cli.group(
    cls=NamesOrCommands,
    short_help="List the plugins, and which are broken; or show one and its parameters.",
    invoke_without_command=True,
    subcommand_metavar="[NAME | check NAME]",
)
@options.listing
@click.pass_context
def plugins(ctx: click.Context, as_json: bool, plugins_dir: tuple[Path, ...]) -> None:
    """List the plugins: what they are, whose, and which are broken; or show the one called NAME.

    NAME is as in recipes: conv-stack, or DISTRIBUTION:NAME. CSWF_LOAD_PLUGINS=a,b loads only those
    distributions besides the built-ins; empty loads no others. CSWF_PLUGINS_DIR names folders of one-file
    plugins.
    """
    if ctx.invoked_subcommand is None:
        do("plugins", "list_plugins", reads=True)(plugins_dir=plugins_dir, as_json=as_json)


def _showing(name: str) -> click.Command:
    """Return the command that shows the plugins of a name."""

    @click.command(name, help="Show the plugin of this name.")
    @options.json
    @options.plugins_dir
    @click.pass_context
    def show(ctx: click.Context, as_json: bool, plugins_dir: tuple[Path, ...]) -> None:
        before = {} if ctx.parent is None else ctx.parent.params
        folders = (*before.get("plugins_dir", ()), *plugins_dir)
        whole = as_json or bool(before.get("as_json"))
        do("plugins", "show_plugin", reads=True)(name=name, plugins_dir=folders, as_json=whole)

    return show


@plugins.command("check", short_help="Prove a plugin by the kit of its kind.")
@argument("plugin", metavar="NAME", shell_complete=options.plugins_of())
@options.listing
@done_by("plugins")
def check_plugin() -> None:
    """Prove the plugin NAME by the kit of its kind: what its contract asks for, tried on small data.

    NAME may have parameters, as in a recipe: '{use: strokes, width: 2}'. Exit status 1 if a check fails.
    """
