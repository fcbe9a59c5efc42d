"""The soak itself: a short one is clean, and one with a planted loss is not."""

from __future__ import annotations

import contextlib
import os

import attrs
import pytest

from cswf_core.runs.checkpoints import CheckpointFolder
from tests.soak import __main__ as program
from tests.soak import results
from tests.soak.__main__ import Soak
from tests.soak.case import Plan, Whole
from tests.soak.faults import DONE, FAULTS, Fault
from tests.soak.works import SAVING, WORKS, Run

KILLED = -9
SHORT = Run("short run", "run", (*SAVING, "schedule.steps=12", "outputs.checkpoint_every=3"))
ON_ORDER = attrs.evolve(
    WORKS["run of plugins"], request=(*WORKS["run of plugins"].request, "schedule.steps=12")
)


@pytest.fixture
def soak(tmp_path) -> Soak:
    return Soak(tmp_path, seed=0)


def carried_out(apart, soak, kinds) -> None:
    for number, make in enumerate(kinds):
        plan = attrs.evolve(Plan.of(0, number, [ON_ORDER]), faults=(make(),))
        if soak.possible(plan):
            soak.do(plan, apart)
    assert not soak.ledger.findings, soak.ledger.table()
    assert soak.ledger.cases + len(soak.ledger.skipped) >= len(kinds)


def test_faults_from_outside_and_inside_leave_what_an_undisturbed_run_does(apart, soak):
    names = ("SIGKILL", "plugin: nan")
    carried_out(apart, soak, [make for make in FAULTS if make().name in names])


@pytest.mark.slow
def test_every_fault_leaves_what_an_undisturbed_run_does(apart, soak):
    carried_out(apart, soak, FAULTS)


@attrs.define
class CutCheckpoint(Fault):
    """A fault that does what none may: it kills a run, and cuts a checkpoint that the manifest lists."""

    def during(self, scene, running):
        checkpoints = CheckpointFolder(scene.target / "checkpoints")
        while running.lasts(0.005):
            if checkpoints.listed():
                running.send(9)

    def after(self, scene, status):
        assert status == KILLED
        os.truncate(max((scene.target / "checkpoints").glob("step-*")), 100)


def test_a_planted_loss_is_reported_with_the_command_that_does_it_again(apart, soak):
    planted = CutCheckpoint("planted", frozenset({DONE, KILLED}))
    plan = attrs.evolve(Plan.of(0, 5, [SHORT]), faults=(planted,))
    soak.do(plan, apart)
    assert {finding.kind for finding in soak.ledger.findings} == {"loss"}
    assert "lost: " in soak.ledger.table()
    assert "python -m tests.soak --case 0:5" in soak.ledger.table()


def test_results_that_differ_or_are_missing_are_told():
    whole = {"samples.npz": "a", "run.json": "b", "samples.png": "c", "metrics.jsonl": "d"}
    here = {"samples.npz": "other", "run.json": "b", "metrics.jsonl": "cut"}
    told = results.differences(whole, here, ignored={"metrics.jsonl"})
    assert told == ["samples.png: missing", "samples.npz: not as they are undisturbed"]


def test_a_soak_with_findings_fails(monkeypatch, tmp_path, capsys):
    def carry_out(case):
        case._note("hang", "planted")

    monkeypatch.setattr("tests.soak.case.Case.carry_out", carry_out)
    monkeypatch.setattr(program, "prepared", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(Soak, "whole", lambda *_: Whole(tmp_path, {}, 1.0))
    assert program.main(["--case", "3:0", "--json", str(tmp_path / "soak.json")]) == 1
    assert '"again": "python -m tests.soak --case 3:0"' in (tmp_path / "soak.json").read_text()
    assert "planted" in capsys.readouterr().out
