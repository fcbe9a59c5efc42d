"""The log of a run has every row once, wherever the run was stopped."""

from __future__ import annotations

import json

import torch

from cswf_core.runs.folder import RunFolder
from cswf_core.runs.record import MetricsLog


def test_a_row_that_was_written_after_the_checkpoint_that_has_it_is_not_there_twice(tmp_path):
    rows = [{"step": step, "stage": 0, "sliced_distance": 1.0} for step in (1, 10, 15)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = MetricsLog(RunFolder(tmp_path), every=10)
    log.recall({"unwritten": torch.tensor([15.0, 0.0, 0.5, 0.25, 2.0], dtype=torch.float64)}, 15)
    log.after_stage()
    written = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert written == [1, 10, 15]
    log.recall({}, 10)
    assert [row["step"] for row in log.folder.read_rows("metrics.jsonl")] == [1, 10]
