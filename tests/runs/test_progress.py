"""What a run says while it goes on."""

from __future__ import annotations

import pytest
import torch

from cswf_core.flow.flow import State
from cswf_core.interfaces import Stage
from cswf_core.runs.progress import Forecast, LineProgress


def state(total_step: int, total_steps: int, seconds: float) -> State:
    stage = Stage(name="(4×4) [4]", steps=total_steps, directions=10, step_size=1.0)
    return State(
        step=total_step,
        total_step=total_step,
        total_steps=total_steps,
        stage_index=0,
        stage_count=1,
        stage=stage,
        seconds=seconds,
        eta=1.0,
        moved=torch.tensor(0.5),
        squares=torch.tensor(0.01),
    )


def test_the_first_step_does_not_count_as_the_others_will():
    forecast = Forecast()
    assert forecast.left(state(1, 101, 100.0)) == ""  # kernels were compiled
    assert forecast.left(state(2, 101, 102.0)) == "  left 3:18"
    assert forecast.left(state(3, 101, 102.0)) == "  left 1:38"
    assert forecast.left(state(101, 101, 200.0)) == "  left 0:00"


@pytest.mark.parametrize(("seconds", "text"), [(37.0, "  left 1:01:40"), (1.0, "  left 1:40")])
def test_a_flow_that_was_joined_later_is_judged_by_all_its_steps(seconds, text):
    assert Forecast().left(state(10, 110, 10 * seconds)) == text


def test_a_line_tells_where_a_run_is(capsys):
    progress = LineProgress(seconds=0)
    progress.after_step(state(1, 3, 5.0))
    progress.after_step(state(2, 3, 6.0))
    progress.after_step(state(3, 3, 7.0))
    assert capsys.readouterr().out.splitlines() == [
        "stage 1/1 (4×4) [4]  step 1/3  moved 0.5000",
        "stage 1/1 (4×4) [4]  step 2/3  moved 0.5000  left 0:01",
        "stage 1/1 (4×4) [4]  step 3/3  moved 0.5000  left 0:00",
    ]
