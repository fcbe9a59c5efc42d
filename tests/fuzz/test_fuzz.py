"""Fuzzing with a short budget, the named cases of the corpus again, and planted faults that must be seen."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cswf_core.errors import DataError
from tests.fuzz.__main__ import planned, table
from tests.fuzz.oracle import Fault, Verdict, judge
from tests.fuzz.target import CORPUS, Target
from tests.fuzz.targets import TARGETS
from tests.fuzz.workers import Chunk, fuzz, isolate

BUDGET = {
    "recipe": 60,
    "override": 60,
    "model": 20,
    "idx": 150,
    "cifar": 100,
    "npz": 200,
    "pictures": 100,
    "packed": 100,
    "command": 15,
}
"""Inputs of each target here, for some seconds in all; `make fuzz` reads a million, of other targets too."""

CASES = sorted(path for path in CORPUS.glob("*/cases/*") if not path.name.startswith("."))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Targets with what they need, made when they are asked for first, in folders of their own."""
    folder, before = tmp_path_factory.mktemp("fuzz"), dict(os.environ)
    isolate(folder)

    @cache
    def prepare(name: str) -> Target:
        target = TARGETS[name](folder / name)
        target.prepare()
        target.enter(folder / "here" / name)
        return target

    yield prepare
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("name", BUDGET)
def test_hostile_inputs_are_answered_with_a_result_or_a_sentence(name, prepared):
    target = prepared(name)
    for number in range(BUDGET[name]):
        verdict = target.judge(target.given(0, number))
        again = f"python -m tests.fuzz --target {name} --seed 0 --input {number}"
        assert verdict.kind != "failure", f"{again}\n{verdict.detail}"


@pytest.mark.parametrize("path", CASES, ids=[f"{path.parts[-3]}/{path.name}" for path in CASES])
def test_what_was_once_answered_wrongly_is_answered_well(path, prepared):
    target = prepared(path.parts[-3])
    verdict = target.judge(target.case(path))
    assert verdict.kind != "failure", verdict.detail


def test_the_corpus_is_small_and_every_target_reads_its_own():
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    assert {path.relative_to(CORPUS).parts[0] for path in files} <= set(TARGETS)


def test_undisturbed_files_are_accepted(prepared):
    for name in ("idx", "cifar", "npz", "pictures"):
        target = prepared(name)
        for file, content in target.seeds.items():
            assert target.judge((file, content)).kind == "accepted", file


def test_an_input_is_the_same_whenever_it_is_made(prepared):
    for name in ("recipe", "override", "npz", "command"):
        target = prepared(name)
        assert [target.given(7, n) for n in range(5)] == [target.given(7, n) for n in range(5)]
        assert target.given(7, 1) != target.given(8, 1)


def test_a_million_inputs_have_enough_of_each_kind():
    chunks = planned({name: target(Path(os.devnull).parent) for name, target in TARGETS.items()}, 1_000_000)
    counts = {name: sum(c.stop - c.first for c in chunks if c.target == name) for name in TARGETS}
    assert sum(counts.values()) >= 1_000_000
    least = {"model": 3_000, "checkpoint": 1_000, "shard": 500, "command": 10_000, "recipe": 100_000}
    assert {name: counts[name] for name in least if counts[name] < least[name]} == {}


class Planted(Target):
    """A reader with a fault in every tenth answer: it raises, never ends, differs without a word, or dies."""

    name = "planted"
    share = 1

    def make(self, rng: random.Random) -> int:
        return rng.randrange(1000)

    def given(self, seed: int, number: int) -> int:
        return number

    def read(self, given: Any) -> None:
        match given:
            case 10:
                {}["nothing"]
            case 20:
                while True:
                    pass
            case 30:
                raise Fault("silent difference: planted")
            case 40:
                os.kill(os.getpid(), signal.SIGKILL)
            case 50:
                raise DataError("")
            case _ if given % 2:
                raise DataError("one sentence")

    def judge(self, given: Any) -> Verdict:
        return judge(lambda: self.read(given), seconds=0.1)


def test_planted_faults_are_seen_counted_and_named(tmp_path):
    target = Planted(tmp_path / "planted")
    tally = fuzz({"planted": target}, [Chunk("planted", 0, 60)], 0, processes=1, folder=tmp_path)["planted"]
    assert (tally.inputs, tally.refused, tally.accepted, tally.failed) == (60, 30, 25, 5)
    first = {group.partition(" at ")[0]: failures.first for group, failures in tally.groups.items()}
    assert first == {
        "KeyError": 10,
        "TooLong": 20,
        "silent difference": 30,
        "the process died (-9)": 40,
        "DataError": 50,
    }
    printed = table({"planted": tally}, 0, 1.0)
    assert "planted: 1 × silent difference" in printed
    assert "python -m tests.fuzz --target planted --seed 0 --input 20" in printed


def test_time_is_that_of_a_core_and_not_of_a_clock():
    assert judge(lambda: time.sleep(0.3), seconds=0.1).kind == "accepted"
