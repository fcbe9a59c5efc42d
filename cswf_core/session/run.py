"""A run of a recipe in its folder: from its start, from where another run has ended, or from a checkpoint."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch

from cswf_core.checks import CheckedObserver
from cswf_core.documents import MisfitError, structured
from cswf_core.errors import CswfError, DataError, PluginError, RunError
from cswf_core.evaluation.evaluate import Evaluation, evaluate
from cswf_core.evaluation.samples import Generated
from cswf_core.evaluation.task import Task
from cswf_core.flow.state import Snapshot
from cswf_core.interfaces import Dataset
from cswf_core.interfaces.metric import Tell
from cswf_core.kernels.memory import memory_limit
from cswf_core.model.writer import ModelWriter
from cswf_core.online import Counts, OnlineFlow, planned_data
from cswf_core.pictures import grid as pictures
from cswf_core.pictures.frames import FrameRecorder
from cswf_core.plugins import PluginFolders, Registry, as_options
from cswf_core.ranks import Ranks
from cswf_core.recipe import Choice, Recipe, RecipeError, build_flow, choose, load_recipe
from cswf_core.recipe.citations import citations
from cswf_core.recipe.provenance import built_ins_changed, refuse_changed_plugins
from cswf_core.recipe.render import flattened, from_yaml, to_yaml
from cswf_core.recipe.sections import OnlineSection
from cswf_core.report import write_report
from cswf_core.runs import samples, two_samples
from cswf_core.runs.checkpoints import (
    Checkpoint,
    CheckpointFacts,
    CheckpointFolder,
    Checkpoints,
    define_checkpoint_commands,
)
from cswf_core.runs.durable import read_tensors, remove_parts, write_tensors
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.record import MetricsLog, Record, command_line, commit, describe_device, versions
from cswf_core.runs.samples import completions_picture, samples_picture
from cswf_core.runs.scores import joined
from cswf_core.session.devices import SharedWork, agree

log = logging.getLogger("cswf")

COUNTS = "counts.safetensors"
"""The file in a run's folder with the counts of its data."""


def launch(
    recipe: Recipe,
    directory: RunFolder,
    *,
    device: str = "auto",
    force: bool = False,
    observers: Sequence[object] = (),
    tell: Tell | None = None,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """Run a recipe to its end and return the facts in run.json; `tell` hears of the evaluation's progress.

    Nothing is written before recipe, data and folder are known to be good. An interruption (Ctrl-C) or an
    error is written into run.json and raised again. With several `ranks` this is for rank 0; the others
    `follow` it (`session.devices`).
    """
    directory.refuse_if_taken(force=force, reading=recipe.path)
    with ExitStack() as closing:
        run = Run(recipe, directory, device, observers, closing, ranks=ranks)
        run.claim(force=force)
        return run.finish(Record(directory, run.facts()), tell)


def resume(
    recipe: Recipe,
    directory: RunFolder,
    *,
    device: str = "auto",
    observers: Sequence[object] = (),
    tell: Tell | None = None,
    announce: Callable[[int, Sequence[str]], object] | None = None,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """Continue a run from its newest good checkpoint, or from the start if there is none.

    `announce` is called with the step it continues from and a sentence for each file that could not be used.
    The result is that of a run without a stop, to the bit, on the same type of device, whatever the number of
    ranks was and is. Raises `RunError` if recipe or data are not those of its beginning.
    """
    require_recipe(directory, recipe)
    with ExitStack() as closing:
        closing.enter_context(directory.held())
        directory.refuse_links()
        remove_parts(directory.path)
        run = Run(recipe, directory, device, observers, closing, ranks=ranks)
        record = Record.again(directory, run.facts())
        if record.began_with is None:
            log.warning("%s does not say which data it was begun with", directory.file("run.json"))
        else:
            run.require_data(record.began_with.sha256)
        lost: list[str] = []
        restored = run.restore(lost)
        if restored is None and "updates" in record.facts:
            raise RunError(
                f"{directory.path} has gone on from another run, and none of its checkpoints is good "
                f"({'; '.join(lost) or 'there are none'}): call cswf update again"
            )
        if restored is None:
            run.checkpoints.recall(None)
        step, seconds = restored or (0, 0.0)
        if announce is not None:
            announce(step, lost)
        record.resumed(step, lost, seconds)
        return run.finish(record, tell)


def require_recipe(directory: RunFolder, recipe: Recipe) -> None:
    """Raise `RunError` with every difference if a folder's run has another recipe."""
    file = directory.file("recipe.yaml")
    text = ""
    with suppress(OSError, ValueError):
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
    _require_same_recipe(directory, recipe, text, str(file))


def _require_same_recipe(directory: RunFolder, recipe: Recipe, written: str, whose: str) -> None:
    """Raise `RunError` with every difference from the recipe that a run has written: `seed: 1, was 0`."""
    first = None
    with suppress(RecipeError):
        first = from_yaml(written)
    if not isinstance(first, dict):
        raise RunError(f"{whose} cannot be read: there is no run here to go on with")
    with suppress(RecipeError):  # it has keys that do not exist now: these will be named
        first = load_recipe(first, registry=recipe.registry).resolved()  # with defaults of keys that are new
    before = flattened(first)
    now = flattened(recipe.resolved())
    differences = [
        f"{path}: {now.get(path, 'not there')}, was {before.get(path, 'not there')}"
        for path in {**before, **now}
        if path not in ("name", "description") and before.get(path) != now.get(path)
    ]
    if differences:
        raise RunError(
            f"{directory.path} was begun with another recipe, so it cannot go on with this one: "
            + "; ".join(differences)
        )


@attrs.frozen(eq=False)
class Predecessor:
    """The end of a run, from which another run goes on."""

    checkpoint: tuple[Path, ...]
    """The files of its last checkpoint, one for each of its ranks."""
    counts: Counts | None
    """The counts of its data; None if they have to be counted."""
    facts: dict[str, Any]
    """The entry about it in the other run's run.json."""
    shape: tuple[int, ...]
    """Of its samples."""
    lost: tuple[str, ...]
    """A sentence for each of its files that cannot be used."""
    plugins: Sequence[Mapping[str, str]]
    """Facts of the plugins that it was made with."""

    def launch_next(
        self,
        recipe: Recipe,
        directory: RunFolder,
        *,
        device: str = "auto",
        force: bool = False,
        observers: Sequence[object] = (),
        tell: Tell | None = None,
        ranks: Ranks | None = None,
    ) -> dict[str, Any]:
        """Do as `launch` does, but begin where this run has ended."""
        directory.refuse_if_taken(force=force, reading=recipe.path)
        with ExitStack() as closing:
            run = Run(recipe, directory, device, observers, closing, self.counts, ranks)
            run.go_back(self.checkpoint)
            run.claim(force=force)
            record = Record(directory, run.facts())
            record.facts["updates"] = self.facts
            run.begin_where(self.facts["steps_done"])
            return run.finish(record, tell)


class Run:
    """One run: its flow, the observers that watch it, and the files in its folder."""

    def __init__(
        self,
        recipe: Recipe,
        directory: RunFolder,
        device: str,
        observers: Sequence[object],
        closing: ExitStack,
        counts: Counts | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """`closing` closes the recipe's observers in the end; `counts` are those of an earlier run's data."""
        self.recipe = recipe
        self.directory = directory
        self.closing = closing
        self.recorder = FrameRecorder(recipe.outputs.frames, recipe.outputs.snapshots)
        self.steps = MetricsLog(directory, recipe.outputs.log_every)
        watchers: list[object] = [self.steps, self.recorder, *_watchers(recipe, directory, closing)]
        writer = ModelWriter(directory.file("model"), recipe) if recipe.model.save else None
        watchers += [] if writer is None else [writer]
        self.folder = CheckpointFolder(directory.file("checkpoints"))
        self.checkpoints = Checkpoints(
            self.folder, recipe.outputs.checkpoint_every, watchers, self._checkpoint_facts
        )
        self.record: Record | None = None
        watching = [*observers, *watchers, self.checkpoints]
        self.flow = build_flow(recipe, device=device, observers=watching, counts=counts, ranks=ranks)
        data = planned_data(self.flow)
        self.data_facts: dict[str, Any] = {
            "samples": len(data),
            "shape": list(data.space.shape),
            "sha256": data.digest(),
            **({} if data.stored is None else {"streamed": True}),
        }
        agree(self.flow, recipe, str(self.data_facts["sha256"]))
        define_checkpoint_commands(self.flow)
        if writer is not None:
            writer.data_digest = str(self.data_facts["sha256"])
        self.task = Task.of_recipe(recipe, data)
        like = attrs.evolve(self.flow.samples(torch.zeros(1, dtype=torch.long)), classes=data.classes)
        self.task.check(like)  # better now than after the flow

    def claim(self, *, force: bool) -> None:
        """Make the folder for a run that begins, and keep it from others until the run has ended."""
        directory = self.directory
        directory.make()
        self.closing.enter_context(directory.held())
        self.closing.callback(directory.withdraw)  # as long as nobody else can begin a run here
        directory.refuse_if_taken(force=force)  # to load data may take long
        directory.create(force=force)
        directory.refuse_links()

    def restore(self, lost: list[str]) -> tuple[int, float] | None:
        """Restore the newest good checkpoint and return its step and the run's seconds until then.

        Returns None if there is none. A sentence for each that cannot be used is added to `lost`.
        """
        remove_parts(self.folder.path)
        for checkpoint in self.folder.newest_first(lost):
            try:
                facts: CheckpointFacts = structured(checkpoint.facts, CheckpointFacts)
            except MisfitError as error:
                lost.append(f"the checkpoint of step {checkpoint.step:,} is not that of a run: {error}")
                continue
            self._require_same_run(facts)
            try:
                self.checkpoints.recall(checkpoint)
            except RunError as error:  # another file of that step is damaged
                lost.append(str(error))
                continue
            flow = self.flow
            if flow.ranks.alone and len(checkpoint.files) == 1:
                try:
                    flow.restore(Snapshot.of(checkpoint.part("flow"), checkpoint.facts))
                except RunError as error:
                    raise RunError(f"{checkpoint.files[0]}: {error}") from error
            else:
                self.go_back(checkpoint.files)
            return checkpoint.step, facts.seconds
        return None

    def begin_where(self, step: int) -> None:
        """Save the state that an earlier run has ended with; raise `RunError` if that fails."""
        self.checkpoints.recall(Checkpoint(step, {}, {}))
        self.checkpoints.step = None
        self.checkpoints.save(self.flow)
        if self.checkpoints.step is None:
            raise RunError(
                f"{self.folder.path} cannot be written, and a run that goes on from another cannot be resumed "
                "without a first checkpoint: make room for it, and call cswf update again"
            )

    def go_back(self, checkpoint: Sequence[Path]) -> None:
        """Have all ranks go on from a checkpoint, which has a file for each of those that wrote it."""
        self.flow.ranks.command("restore", self.flow, [str(file) for file in checkpoint])

    def require_data(self, digest: str) -> None:
        """Raise `RunError` if the data do not have this SHA-256, the one at the run's beginning."""
        now = str(self.data_facts["sha256"])
        if digest == now:
            return
        folder = self.directory.path
        before = self.directory.facts()
        streamed = before is not None and before.data is not None and before.data.streamed
        if streamed != ("streamed" in self.data_facts):
            was, now = ("streamed", "in memory") if streamed else ("in memory", "streamed")
            raise RunError(
                f"the data of {folder} were {was}, and here they are {now}, so that they cannot be compared: "
                "take the --memory-limit that it was begun with, or as much memory"
            )
        raise RunError(
            f"the data are not those that {folder} was begun with: "
            f"their SHA-256 is {now[:12]}…, was {digest[:12]}…"
        )

    def _require_same_run(self, facts: CheckpointFacts) -> None:
        """Raise `RunError` if a checkpoint has another recipe or other data; warn if bits may differ."""
        now = self._checkpoint_facts()
        folder = self.directory.path
        _require_same_recipe(
            self.directory, self.recipe, facts.recipe, f"the recipe in a checkpoint in {folder}"
        )
        self.require_data(facts.data_sha256)
        refuse_changed_plugins(self.recipe, facts.plugins, f"the checkpoint in {folder}")
        differences = [
            f"{package} {now['versions'].get(package)}, was {version}"
            for package, version in facts.versions.items()
            if now["versions"].get(package) != version
        ]
        if built_ins_changed(self.recipe, facts.plugins):
            differences.append("the files of built-in plugins have changed")
        if facts.device != now["device"]:
            differences.append(f"device {now['device']}, was {facts.device}")
        if differences:
            log.warning("the result may differ in its last digits: %s", "; ".join(differences))

    def finish(self, record: Record, tell: Tell | None) -> dict[str, Any]:
        """Run the flow to its end, write and score its samples, and return the facts in run.json."""
        directory = self.directory
        flow = self.flow
        self.record = record
        directory.write("recipe.yaml", to_yaml(self.recipe.resolved()))  # before the record, which needs it
        self.closing.callback(refresh_report, directory)
        try:
            record.save("running")
            flow.ranks.end_commands()
            with self.checkpoints.stopping.patient():
                generated = flow.run()
            flow.ranks.begin_commands()
            self._write_results(generated)
            spreads = {"spread": samples.spread(generated)}
            if flow.settings.offline:
                spreads["offline_spread"] = self._write_offline(flow.offline_samples(), generated)
            record.save("running", **self._progress(), samples_sha256=generated.digest(), **spreads)
            share_out = None if flow.ranks.alone else SharedWork(flow.ranks, flow.device)
            evaluated = evaluate(
                Generated(generated, "samples.npz"),
                self.task,
                device=flow.device,
                dtype=flow.settings.dtype,
                bench=self.task.bench(tell, share_out),
                keep=partial(write_scores, directory),
            )
            flow.notify("after_evaluation", scores=evaluated.scores)
            flow.ranks.begin_commands()
            record.save("done", metrics=evaluated.scores)
        except KeyboardInterrupt:
            record.save("interrupted", **self._progress())
            raise
        except BaseException as error:
            reason = str(error) if isinstance(error, CswfError) else f"{type(error).__name__}: {error}"
            record.save("failed", **self._progress(), error=reason)
            raise
        with suppress(RunError):  # two checkpoints instead of one are no reason for a run to fail
            self.folder.keep_newest()
        return record.facts

    def facts(self) -> dict[str, Any]:
        """Return the facts that run.json has from the run's beginning."""
        recipe = self.recipe
        flow = self.flow
        recorded = ("name", "distribution", "version", "sha256")
        return {
            "name": recipe.name,
            "seed": recipe.seed,
            "device": describe_device(flow.device),
            "ranks": flow.ranks.size,
            "particles": flow.count,
            **({} if memory_limit() is None else {"memory_limit": memory_limit()}),
            "data": self.data_facts,
            "plugins": {
                path: {key: getattr(choice.plugin.owner, key) for key in recorded}
                for path, choice in recipe.choices().items()
            },
            "distributions": recipe.registry.distributions,
            "command": command_line(),
            "commit": commit(),
            "citations": _citations(recipe),
            "licence": recipe.data.part.licence,
        }

    def _checkpoint_facts(self) -> dict[str, Any]:
        """Return the facts that a checkpoint has besides those of the flow."""
        return {
            "recipe": to_yaml(self.recipe.resolved()),
            "data_sha256": self.data_facts["sha256"],
            "device": self.flow.device.type,
            "versions": {**self.recipe.registry.distributions, "torch": versions()["torch"]},
            "plugins": self.recipe.plugin_facts(),
            "seconds": 0.0 if self.record is None else self.record.seconds,
        }

    def _write_results(self, generated: Dataset) -> None:
        directory = self.directory
        flow = self.flow
        columns = self.recipe.outputs.columns
        observation = None if flow.observation is None else flow.observation.to(torch.device("cpu"))
        directory.write("samples.npz", samples.archive(generated, observation))
        if observation is not None and generated.space.is_image:
            completed = completions_picture(generated, flow.data, observation, columns)
            directory.write("completions.png", pictures.png(completed))
        directory.write("samples.png", pictures.png(samples_picture(generated, flow.data, columns)))
        frames = self.recorder.frames
        snapshots = None if frames is None else frames.at(self.recipe.outputs.snapshots)
        if snapshots is not None:
            directory.write("flow.png", pictures.png(snapshots.strip()))
        film = self.recorder.film
        if frames is not None and film is not None and self.recipe.outputs.frames:
            directory.write("frames.npz", frames.archive())
            directory.write("flow.gif", film.gif())
        if isinstance(flow, OnlineFlow):
            counts = flow.counts()
            write_tensors(directory.file(COUNTS), counts.tensors(), counts.facts())

    def _write_offline(self, carried: Dataset, generated: Dataset) -> float:
        """Write the particles that were carried along; return their spread, and warn if they differ."""
        mine, theirs = (samples.arrays_of(each, None) for each in (carried, generated))
        test = None
        with suppress(DataError):
            test = two_samples.compare(mine, theirs, carried.space.dimension)
        texts = {two_samples.NAME: two_samples.as_json(test)}
        self.directory.write("samples-offline.npz", samples.archive(carried, None, **texts))
        picture = samples_picture(carried, self.flow.data, self.recipe.outputs.columns)
        self.directory.write("samples-offline.png", pictures.png(picture, **texts))
        if test is not None:
            test.warn()
        return samples.spread(carried)

    def _progress(self) -> dict[str, Any]:
        return {
            "particles": self.flow.count,
            "steps_done": self.steps.steps_done,
            "steps_planned": sum(stage.steps for stage in self.flow.stages),
            "directions": {str(stage): text for stage, text in self.flow.fingerprints.items()},
        }


def write_scores(directory: RunFolder, evaluated: Evaluation) -> list[str]:
    """Add scores to those in metrics.json and draw their figures; return what is to be told of other scores."""
    while evaluated.figures:
        name, figure = evaluated.figures.popitem()
        rows = [[pictures.tile(image) for image in row] for row in figure.rows]
        drawn = pictures.table(rows, figure.left, figure.top, figure.captions)
        directory.write(f"{name}.png", pictures.png(drawn))
    if evaluated.real is not None:
        directory.write("real.npz", samples.archive(evaluated.real, None))
        evaluated.real = None
    document, told = joined(directory.read_json("metrics.json"), evaluated.document)
    directory.write_json("metrics.json", document)
    return told


def write_features(directory: RunFolder, evaluated: Evaluation) -> list[str]:
    """Write all features that an evaluation has looked at, a file for each set and network; return the files.

    Of real images whose mean and covariance were kept from before, there may be none.
    """
    files: list[str] = []
    for name, rows in evaluated.features.items():
        buffer = io.BytesIO()
        np.save(buffer, rows.cpu().numpy(), allow_pickle=False)
        plain = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)
        stem = f"features-{plain}"
        number = sum(file.removesuffix(".npy").rstrip("-0123456789") == stem for file in files)
        files.append(f"{stem}{f'-{number + 1}' if number else ''}.npy")
        directory.write(files[-1], buffer.getvalue())
    return files


def _citations(recipe: Recipe) -> list[str]:
    """Return the BibTeX entries of what a recipe rests on; warn if a plugin has one that is wrong."""
    try:
        return [str(work) for work in citations(recipe)]
    except PluginError as error:
        log.warning("the run's page has no BibTeX: %s", error)
        return []


def settle(folder: RunFolder) -> None:
    """Do what a kill right after a run's end has left undone: one checkpoint instead of two, and the page."""
    with suppress(RunError), folder.held():  # the run itself may be about to end
        remove_parts(folder.path)
        folder.refuse_links()
        CheckpointFolder(folder.file("checkpoints")).keep_newest()
    if not folder.file("report.html").exists():
        refresh_report(folder)


def refresh_report(directory: RunFolder) -> None:
    """Write report.html; if that fails, warn: it is no reason for a run to fail."""
    try:
        write_report(directory)
    except CswfError as error:
        log.warning("the report could not be written: %s", error)


def _watchers(recipe: Recipe, directory: RunFolder, closing: ExitStack) -> list[object]:
    """Return the objects with which the recipe's observers watch this run; `closing` closes them."""

    def close(observer: CheckedObserver, watcher: object) -> None:
        try:
            observer.close(watcher)
        except CswfError as error:  # the run is done all the same
            log.warning("%s", error)

    watchers = []
    for choice in recipe.observers:
        watcher = choice.checked.watch(directory.path)
        watchers.append(watcher)
        closing.callback(close, choice.checked, watcher)
    return watchers


def read_predecessor(directory: RunFolder, plugins_dir: PluginFolders = None) -> Predecessor:
    """Return the end of the run in a folder; raise `RunError` if it is not done, or has no checkpoint.

    `plugins_dir` are the folders of its plugins, for the command that would bring it to its end.
    """
    record = directory.facts()
    if not directory.begun or record is None:
        raise RunError(f"{directory.path} has no run: it lacks recipe.yaml or run.json")
    if not directory.done:
        resume = f"`cswf resume {directory.path}{as_options(plugins_dir)}`"
        raise RunError(f"{directory.path} is not done; {resume} brings it to its end")
    lost: list[str] = []
    end = next(CheckpointFolder(directory.file("checkpoints")).newest_first(lost), None)
    if end is None or end.step != record.steps_done:
        reasons = "; ".join(lost) or "outputs.checkpoint_every may have been 'never'"
        raise RunError(
            f"{directory.path} has no checkpoint of its end, where its particles could go on: {reasons}"
        )
    if record.data is None:
        raise RunError(f"{directory.file('run.json')} is damaged: it does not say which data the run had")
    facts: dict[str, Any] = {"run": directory.path.resolve().name, "steps_done": end.step}
    facts |= {"samples_sha256": record.samples_sha256, "particles": record.particles}
    try:
        known: CheckpointFacts = structured(end.facts, CheckpointFacts)
    except MisfitError as error:
        raise RunError(f"{end.files[0]} is damaged: {error}") from None
    counts = None
    file = directory.file(COUNTS)
    if file.exists():
        try:
            counts = Counts.of_tensors(*read_tensors(file))
        except RunError as error:
            lost.append(str(error))
    return Predecessor(tuple(end.files), counts, facts, record.data.shape, tuple(lost), known.plugins)


def with_arrival(recipe: Recipe, new: Choice, steps: int | Sequence[int] | None) -> Recipe:
    """Return a run's recipe with one more arrival; `steps` is K of the stages then, as before if None.

    A run that has no sets of directions gets no more than the steps can use. The maps of the steps before are
    not those of this run, so it can save no model.
    """
    online = recipe.online
    if online is None:
        online = OnlineSection()
        most = max(steps) if isinstance(steps, Sequence) else steps
        online = attrs.evolve(online, sets=min(online.sets, max(most or online.sets, 1)))
    if steps is not None:
        last = steps if isinstance(steps, int) else tuple(steps)
        before = tuple(online.steps_after(number) for number in range(len(recipe.arrivals)))
        online = attrs.evolve(online, steps=(*before, last) if before or isinstance(last, tuple) else last)
    return attrs.evolve(
        recipe, online=online, arrivals=(*recipe.arrivals, new), model=attrs.evolve(recipe.model, save=False)
    )


def with_room(recipe: Recipe, needed: int) -> Recipe | None:
    """Return a recipe whose condition has room for `needed` classes; None if it has no such parameter."""
    part = recipe.condition.part
    if not any(field.name == "room" for field in attrs.fields(type(part))):
        return None
    condition = attrs.evolve(recipe.condition, part=attrs.evolve(part, room=needed))
    return attrs.evolve(recipe, condition=condition)


def choose_data(text: str, registry: Registry, shape: Sequence[int]) -> Choice:
    """Return the data that `--data` names: as a recipe does, or a folder of pictures, or an .npz file.

    `shape` is that of the samples before: pictures are brought to it.
    """
    path = Path(text).expanduser()
    if text in registry.names("dataset") or text.lstrip().startswith("{") or not path.exists():
        return choose(registry, "dataset", text, "--data", or_path=True)
    section: dict[str, Any] = {"use": "npz", "path": str(path.resolve())}
    if path.is_dir():
        if len(shape) != 3:
            raise RunError(f"{path} is a folder of pictures, and the run's data are points")
        section |= {"use": "image-folder", "size": shape[1], "channels": shape[0], "held_out": 0}
    return choose(registry, "dataset", json.dumps(section, ensure_ascii=False), "--data")
