"""The targets of fuzzing, by name, with their shares of all inputs."""

from __future__ import annotations

from tests.fuzz.target import Target
from tests.fuzz.targets.checkpoints import CheckpointTarget
from tests.fuzz.targets.commands import CommandTarget
from tests.fuzz.targets.data import CifarTarget, IdxTarget, NpzTarget, PackedTarget, PicturesTarget
from tests.fuzz.targets.models import ModelTarget, ShardTarget
from tests.fuzz.targets.recipes import OverrideTarget, RecipeTarget
from tests.fuzz.targets.runs import ReportTarget, RunTarget

TARGETS: dict[str, type[Target]] = {
    target.name: target
    for target in (
        RecipeTarget,
        OverrideTarget,
        ModelTarget,
        ShardTarget,
        CheckpointTarget,
        RunTarget,
        IdxTarget,
        CifarTarget,
        NpzTarget,
        PicturesTarget,
        PackedTarget,
        ReportTarget,
        CommandTarget,
    )
}
