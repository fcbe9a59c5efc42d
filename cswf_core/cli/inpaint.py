"""`cswf inpaint`: complete pictures with a saved model."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.cli.output import destinations, write_completions
from cswf_core.cli.terminal import prepare
from cswf_core.errors import RunError
from cswf_core.model import load_model
from cswf_core.pictures.read import read_images, read_mask
from cswf_core.runs.printing import say
from cswf_core.runs.screen import WorkProgress


@click.command()
@click.argument("path", metavar="RUN|MODEL", type=click.Path(path_type=Path))
@click.argument("images", metavar="[IMAGE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--held-out",
    type=options.WholeNumber(1),
    help="Complete the first so many images that the model's data hold out, instead of pictures from a disk.",
)
@click.option(
    "--mask",
    type=click.Path(path_type=Path),
    help="A picture, black where pixels are to be filled in.  [default: what the model's recipe says]",
)
@click.option(
    "--count", type=options.WholeNumber(1), default=5, show_default=True, help="Completions of each image."
)
@click.option("--resize", is_flag=True, help="Bring images of another size to the model's.")
@options.seed
@options.out("FILE.png, FILE.npz, or a folder for one PNG each.  [default: completions.npz and .png here]")
@options.replace
@options.device
@options.memory_limit
@options.quiet
@options.accept_changed_plugins
@options.plugins_dir
def inpaint(
    path: Path,
    images: tuple[Path, ...],
    held_out: int | None,
    mask: Path | None,
    count: int,
    resize: bool,
    seed: int,
    out: Path | None,
    force: bool,
    device: str,
    quiet: bool,
    plugins_dir: tuple[Path, ...],
) -> None:
    """Complete images with a saved model whose condition sees a part of an image: pictures, or held-out data.

    What is seen is what the model's recipe says: some of the pixels, a small version, the luminance. The
    picture shows what is seen, the completions and the original, a row for each image.
    """
    prepare(quiet=quiet)
    if bool(images) == (held_out is not None):
        raise RunError("give pictures (IMAGE…) or --held-out N, one of the two")
    model = load_model(path, plugins_dir=plugins_dir)
    model.refuse_unless_completing()
    if held_out is None:
        pixels, names = read_images(images, model.space, resize=resize), [image.stem for image in images]
    else:
        pixels = model.held_out_images(held_out)
        names = [f"held-out-{number:05}" for number in range(held_out)]
    observable = None if mask is None else read_mask(mask, model.space, resize=resize)
    places = destinations(out, [Path("completions.npz"), Path("completions.png")], model.space, force=force)
    observed = model.observation(pixels, mask=observable, seed=seed)
    with closing(WorkProgress(silent=quiet)) as progress:
        completed = model.complete(
            pixels, mask=observable, count=count, seed=seed, device=device, tell=progress.tell
        )
    write_completions(completed, pixels, observed, names, places)
    if not quiet:
        say(f"{len(completed):,} completions: see {', '.join(map(str, places))}")
