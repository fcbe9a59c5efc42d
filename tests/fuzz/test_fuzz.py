"""Hostile inputs for every reader, the named cases of the corpus, and planted faults that must be seen."""

from __future__ import annotations

import os
import re
import time
from functools import cache
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase, strategies

from cswf_core.errors import DataError
from tests.fuzz.commands import WORK, CommandTarget
from tests.fuzz.data import CifarTarget, IdxTarget, NpzTarget, PicturesTarget
from tests.fuzz.folders import Changes, CheckpointTarget, ModelTarget, PackedTarget, ReportTarget, RunTarget
from tests.fuzz.oracle import Fault, judge, limited_memory
from tests.fuzz.recipes import OverrideTarget, RecipeTarget
from tests.fuzz.target import CORPUS, Target
from tests.project.sources import SOURCES

HERE = {
    RecipeTarget: (60, 110_000),
    OverrideTarget: (60, 100_000),
    ModelTarget: (20, 19_000),
    CheckpointTarget: (0, 2_000),
    RunTarget: (0, 4_000),
    IdxTarget: (150, 300_000),
    CifarTarget: (100, 150_000),
    NpzTarget: (200, 120_000),
    PicturesTarget: (100, 90_000),
    PackedTarget: (100, 85_000),
    ReportTarget: (0, 8_000),
    CommandTarget: (15, 12_000),
}
"""Inputs of each target with all other tests, for some seconds in all, and of a million (`make fuzz`)."""

TARGETS = {target.name: target for target in HERE}
MILLION = sum(share for _, share in HERE.values())

SEED = os.environ.get("FUZZ_SEED", "0")
INPUTS = int(os.environ.get("FUZZ_INPUTS", "0"))
"""Inputs of all targets together; 0: those of `HERE`."""

BLOB = os.environ.get("FUZZ_BLOB", "")
"""What Hypothesis has printed of a failure: this input alone is read again."""

PARTS = 150
"""Tests that a million inputs of a target are shared out to."""

CASES = sorted(path for path in CORPUS.glob("*/cases/*") if not path.name.startswith("."))


def chunks(inputs: int) -> list[Any]:
    """Return the tests that read so many inputs: a target, the test's number, and how many it reads."""
    listed = []
    for target, (few, share) in HERE.items():
        count = -(-inputs * share // MILLION) if inputs else few
        most = -(-share // PARTS)
        for number, first in enumerate(range(0, count, most)):
            part = (target.name, number, min(most, count - first))
            listed.append(pytest.param(*part, id=f"{target.name}-{number}"))
    return listed


def fuzz(target: Target, seed: str, count: int, blob: str = "") -> None:
    """Have a target read so many inputs; the failures are raised, each with what reads it again."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        print_blob=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(target.inputs)
    def is_answered(given: Any) -> None:
        hypothesis.event(target.judge(given))

    if blob:
        is_answered = hypothesis.reproduce_failure(hypothesis.__version__, blob.encode())(is_answered)
    with limited_memory():
        is_answered()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Make targets when they are asked for first, with nothing in home and cache, and without a network."""
    folder = tmp_path_factory.mktemp("fuzz")
    home = folder / "home"
    home.mkdir()
    torch.set_num_threads(1)  # or a run that goes on with 1,024 threads does start them, and takes a minute
    proxies = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    variables = {"HOME": str(home), "CSWF_DATA": str(home / "data"), "COLUMNS": "100", "NO_COLOR": "1"}
    with pytest.MonkeyPatch.context() as patch, open(os.devnull) as nothing:
        patch.setattr("sys.stdin", nothing)
        for name in ("CSWF_PLUGINS_DIR", "CSWF_LOAD_PLUGINS", "CSWF_TRACEBACK", "no_proxy", "NO_PROXY"):
            patch.delenv(name, raising=False)
        for name, value in (variables | dict.fromkeys(proxies, "http://127.0.0.1:9")).items():
            patch.setenv(name, value)
        yield cache(lambda name: TARGETS[name](folder / name))


@pytest.mark.fuzz
@pytest.mark.parametrize(("name", "number", "count"), chunks(INPUTS))
def test_hostile_inputs_are_answered_with_a_result_or_a_sentence(name, number, count, prepared):
    fuzz(prepared(name), f"{SEED}/{name}/{number}", count, BLOB)


@pytest.mark.parametrize("path", CASES, ids=[f"{path.parts[-3]}/{path.name}" for path in CASES])
def test_what_was_once_answered_wrongly_is_answered_well(path, prepared):
    target = prepared(path.parts[-3])
    target.judge(target.case(path))


def test_the_corpus_is_small_and_every_target_reads_its_own():
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    assert {path.relative_to(CORPUS).parts[0] for path in files} <= set(TARGETS)


@pytest.mark.parametrize("name", ["idx", "cifar", "npz", "pictures"])
def test_undisturbed_files_are_accepted(name, prepared):
    target = prepared(name)
    assert {target.judge(seed) for seed in target.seeds.items()} == {"accepted"}


def test_a_million_inputs_have_enough_of_each_kind():
    counts = dict.fromkeys(TARGETS, 0)
    for chunk in chunks(1_000_000):
        name, _, count = chunk.values
        counts[name] += count
    assert sum(counts.values()) >= 1_000_000
    least = {"model": 3_000, "checkpoint": 1_000, "command": 10_000, "recipe": 100_000}
    assert {name: counts[name] for name in least if counts[name] < least[name]} == {}


class Planted(Target):
    """A reader with a fault for one number: it raises, never ends, or differs without a word."""

    name = "planted"

    def prepare(self) -> None:
        self.given: list[int] = []

    def make(self, draw):
        return draw(strategies.integers(0, 99))

    def read(self, given):
        self.given.append(given)
        if given != 70:
            if given % 2:
                raise DataError("one sentence")
            return
        match self.fault:
            case "KeyError":
                {}["nothing"]
            case "not answered in":
                while True:
                    pass
            case "silent difference":
                raise Fault("silent difference: planted")
            case "an error without words":
                raise DataError("")
            case "it ends with SystemExit":
                raise SystemExit(0)
            case "MemoryError":
                bytearray(5 << 30)

    def judge(self, given):
        return judge(lambda: self.read(given), seconds=0.1)


FAULTS = (
    "KeyError",
    "not answered in",
    "silent difference",
    "an error without words",
    "it ends with SystemExit",
)


@pytest.mark.parametrize("fault", [*FAULTS, "MemoryError"])
def test_planted_faults_are_seen_and_read_again_by_what_is_printed(fault, tmp_path):
    target = Planted(tmp_path / "planted")
    target.fault = fault
    with pytest.raises(Exception, match=r".*") as failed:
        fuzz(target, "0", 300)
    printed = "\n".join([repr(failed.value), *failed.value.__notes__])
    assert fault in printed
    assert "given=70" in printed
    target.given.clear()
    with pytest.raises(type(failed.value)):
        fuzz(target, "another", 300, re.search(r"reproduce_failure\(.*, b'(.*)'\)", printed)[1])
    assert set(target.given) == {70}


def test_another_result_without_a_word_is_a_fault(prepared, monkeypatch):
    target = prepared("packed")
    target.read(Changes("pack", {}))
    monkeypatch.setitem(target.answers, "pack", "another")
    target.read(Changes("pack", {}, forged=True))
    with pytest.raises(Fault, match="silent difference"):
        target.read(Changes("pack", {}))


def test_inputs_are_those_of_a_seed(tmp_path):
    given = []
    for seed in ("7", "7", "8"):
        target = Planted(tmp_path / "planted")
        target.fault = ""
        fuzz(target, seed, 50)
        given.append(target.given)
    assert given[0] == given[1] != given[2]


def test_functions_in_which_commands_may_be_stopped_are_there():
    for file, function in WORK:
        assert any(f"def {function}(" in path.read_text("utf-8") for path in SOURCES if path.name == file), file


def test_time_is_that_of_a_core_and_not_of_a_clock():
    assert judge(lambda: time.sleep(0.3), seconds=0.1) == "accepted"
