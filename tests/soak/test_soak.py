"""The soak: `make soak` draws cases for some minutes; some are in CI, and a planted loss is found."""

from __future__ import annotations

import os
import time

import attrs
import pytest

from cswf_core.runs.checkpoints import CheckpointFolder
from tests.soak import results
from tests.soak.case import Case, Plan, undisturbed
from tests.soak.faults import DONE, FAULTS, Fault
from tests.soak.works import SAVING, WORKS, Work

pytestmark = pytest.mark.processes

SEED = os.environ.get("SOAK_SEED", "0")
UNTIL = float(os.environ.get("SOAK_UNTIL", "0"))
"""Seconds since 1970 after which no further case begins; 0: all do."""

ONE = os.environ.get("SOAK_CASE", "")
"""A case alone, as `seed:number`."""

DRAWN = [ONE] if ONE else [f"{SEED}:{number}" for number in range(int(os.environ.get("SOAK_CASES", "1")))]

KILLED = -9
SHORT = Work("short run", "run", (*SAVING, "schedule.steps=12", "outputs.checkpoint_every=3"))
ON_ORDER = attrs.evolve(
    WORKS["run of plugins"], request=(*WORKS["run of plugins"].request, "schedule.steps=12")
)


@pytest.fixture(scope="session")
def whole(apart, tmp_path_factory):
    """What a work leaves undisturbed; done once."""
    base = tmp_path_factory.mktemp("whole")
    known = {}

    def make(work):
        if work not in known:
            before = WORKS.get(work.source)
            source = None if before is None else before.target(make(before).folder)
            known[work] = undisturbed(work, base / work.name.replace(" ", "-"), apart, source)
        return known[work]

    return make


@pytest.fixture
def carried_out(apart, whole, tmp_path, record_property):
    """Carry out a plan."""

    def carry_out(plan):
        case = Case(plan, tmp_path, whole(plan.work), apart, record_property)
        case.carry_out()
        return case

    return carry_out


def check(case) -> None:
    again = f"make soak CASE={case.plan.name}"
    assert not case.findings, "\n".join([*case.findings, *case.lines, again])


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_a_disturbed_work_leaves_what_an_undisturbed_one_does(name, carried_out):
    if UNTIL and time.time() > UNTIL:
        pytest.skip("the time is over")
    check(carried_out(Plan.of(name)))


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(
            number, id=make().name, marks=() if make().name in ("SIGKILL", "plugin: nan") else pytest.mark.slow
        )
        for number, make in enumerate(FAULTS)
    ],
)
def test_a_fault_leaves_what_an_undisturbed_run_does(number, carried_out):
    plan = Plan.of(f"0:{number}", [ON_ORDER])
    check(carried_out(attrs.evolve(plan, faults=plan.faults[:1])))


@attrs.define
class CutCheckpoint(Fault):
    """A fault that does what none may: it kills a run, and cuts a checkpoint that the manifest lists."""

    def during(self, case, running):
        checkpoints = CheckpointFolder(case.target / "checkpoints")
        while running.lasts(0.005):
            if checkpoints.listed():
                running.send(9)

    def after(self, case, status):
        assert status == KILLED
        os.truncate(max((case.target / "checkpoints").glob("step-*")), 100)


def test_a_planted_loss_is_reported_with_the_command_that_does_it_again(carried_out):
    planted = CutCheckpoint("planted", frozenset({DONE, KILLED}))
    case = carried_out(attrs.evolve(Plan.of("0:5", [SHORT]), faults=(planted,)))
    assert {finding.partition(":")[0] for finding in case.findings} == {"loss"}
    with pytest.raises(AssertionError, match=r"(?s)lost: .*# -9.*make soak CASE=0:5"):
        check(case)


def test_results_that_differ_or_are_missing_are_told():
    whole = {"samples.npz": "a", "run.json": "b", "samples.png": "c", "metrics.jsonl": "d"}
    here = {"samples.npz": "other", "run.json": "b", "metrics.jsonl": "cut"}
    told = results.differences(whole, here, ignored={"metrics.jsonl"})
    assert told == ["samples.png: missing", "samples.npz: not as they are undisturbed"]
