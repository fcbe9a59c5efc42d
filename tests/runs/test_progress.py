"""What a run says while it goes on."""

from __future__ import annotations

import io
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from cswf_core.flow.flow import State
from cswf_core.interfaces import Space, Stage
from cswf_core.runs.screen import FlowProgress, Forecast, WorkProgress


def after(total_step: int, total_steps: int, seconds: float, *stages: Stage) -> tuple[Any, State]:
    """A flow through stages of images of 4×4, by default through one, and its state after a step."""
    stages = stages or (Stage(name="(4×4) [4]", steps=total_steps, directions=10, step_size=1.0),)
    ends = list(accumulate(stage.steps for stage in stages))
    index = next(number for number, end in enumerate(ends) if total_step <= end)
    state = State(
        step=total_step - ends[index] + stages[index].steps,
        total_step=total_step,
        total_steps=total_steps,
        stage_index=index,
        stage_count=len(stages),
        stage=stages[index],
        seconds=seconds,
        eta=1.0,
        moved=torch.tensor(0.5),
        squares=torch.tensor(0.01),
    )
    data = SimpleNamespace(space=Space((1, 4, 4)))
    return SimpleNamespace(stages=stages, data=data, device=torch.device("cpu")), state


def left(forecast: Forecast, total: int, *progress: tuple[int, float]) -> list[str]:
    return [forecast.left(done, total, seconds) for done, seconds in progress]


def test_time_left_goes_by_the_pace_since_the_beginning():
    later = left(Forecast(1, 100.0), 101, (1, 100.0), (2, 102.0), (3, 102.0), (101, 200.0))
    assert later == ["", "  left 3:18", "  left 1:38", "  left 0:00"]
    assert left(Forecast(), 110, (10, 370.0), (10, 10.0)) == ["  left 1:01:40", "  left 1:40"]


def test_a_line_tells_where_a_run_is(capsys):
    progress = FlowProgress(seconds=0)
    progress.after_step(*after(1, 3, 5.0))
    progress.after_step(*after(2, 3, 6.0))
    progress.after_step(*after(3, 3, 7.0))
    assert capsys.readouterr().out.splitlines() == [
        "stage 1/1 (4×4) [4]  step 1/3  moved 0.5000",
        "stage 1/1 (4×4) [4]  step 2/3  moved 0.5000  left 0:01",
        "stage 1/1 (4×4) [4]  step 3/3  moved 0.5000  left 0:00",
    ]


def test_the_first_step_says_nothing_of_the_pace_also_where_a_flow_goes_on(capsys):
    for first in (1, 10):
        progress = FlowProgress(seconds=0)
        progress.after_step(*after(first, 110, 100.0))
        progress.after_step(*after(first + 1, 110, 110.0))
    ends = [line.partition("moved 0.5000")[2] for line in capsys.readouterr().out.splitlines()]
    assert ends == ["", "  left 18:00", "", "  left 16:30"]


def test_time_left_knows_that_steps_of_later_stages_cost_more(capsys):
    coarse = Stage(name="coarse", steps=100, directions=100, step_size=1.0)
    fine = Stage(name="fine", steps=100, directions=1000, step_size=1.0)
    progress = FlowProgress(seconds=0)
    for step, seconds in ((1, 5.0), (100, 104.0), (101, 114.0), (150, 604.0), (200, 1104.0)):
        progress.after_step(*after(step, 200, seconds, coarse, fine))
    ends = [line.partition("moved 0.5000")[2] for line in capsys.readouterr().out.splitlines()]
    assert ends == ["", "  left 16:40", "  left 16:30", "  left 8:20", "  left 0:00"]


def test_work_beside_the_flow_tells_its_pace_on_stderr(capsys):
    progress = WorkProgress(seconds=0)
    progress.tell("features", 0, 1000)
    progress.tell("features", 500, 1000)
    progress.tell("a single thing", 0, 1)
    progress.close()
    assert capsys.readouterr().err.splitlines() == ["0/1,000 features", "500/1,000 features  left 0:00"]


@pytest.mark.parametrize("early", [False, True])
def test_a_bar_is_full_in_the_end_also_if_a_stage_was_left_early(early):
    drawn = io.StringIO()
    progress = FlowProgress(Console(file=drawn, force_terminal=True, width=100))
    progress.after_step(*after(3, 9 if early else 3, 1.0))
    progress.after_run()
    progress.close()
    assert "3/3" in drawn.getvalue()
    assert "stage 1/1  moved 0.5000" in drawn.getvalue()
