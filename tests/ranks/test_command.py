"""`--devices` starts ranks that give the result of one; a rank that is lost ends all, and the run goes on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cswf_core.ranks import Ranks
from cswf_core.recipe import load_recipe
from cswf_core.runs.checkpoints import CheckpointFolder
from cswf_core.runs.folder import RunFolder
from cswf_core.session.devices import STARTER, follow, joined, status_of
from cswf_core.session.run import choose_data, launch, read_predecessor, with_arrival
from tests.conftest import read_json
from tests.processes import CSWF, PYTHON, launched, wait_until
from tests.ranks.forked import on_ranks

pytestmark = pytest.mark.processes

SMALL = (
    "digits",
    "particles.count=700",
    "schedule.steps=60",
    "schedule.directions=64",
    "outputs.checkpoint_every=5",
    "outputs.frames=3",
    "outputs.snapshots=[]",
    "evaluate.metrics=[]",
)
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")


def ranks_of(out: Path) -> dict[int, int]:
    """The processes that work on a run: rank → process."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            settings = dict(
                part.split(b"=", 1) for part in (process / "environ").read_bytes().split(b"\0") if part
            )
        except (OSError, ValueError):
            continue
        if str(out).encode() in words and b"LOCAL_RANK" in settings and any(b"cswf_core" in w for w in words):
            found[int(settings[b"RANK"])] = int(process.name)
    return found


@contextmanager
def ended_afterwards(out: Path) -> Iterator[None]:
    """End all ranks of a run, which are in sessions of their own."""
    try:
        yield
    finally:
        for process in ranks_of(out).values():
            os.kill(process, signal.SIGKILL)


def checkpointed(out: Path) -> bool:
    return bool(CheckpointFolder(out / "checkpoints").listed())


def alone(tmp_path: Path) -> str:
    """SHA-256 of the samples of the same run in this process."""
    facts = launch(load_recipe(SMALL[0], SMALL[1:]), RunFolder(tmp_path / "alone"), device="cpu")
    return str(facts["samples_sha256"])


def test_a_lost_rank_ends_all_with_one_sentence_and_one_process_goes_on_to_the_same_bits(tmp_path, cswf, apart):
    out = tmp_path / "run"
    command = ("run", *SMALL, "--devices", "2", "--device", "cpu", "--out", out)
    with ended_afterwards(out), apart(*command) as started:
        wait_until(lambda: checkpointed(out) and len(ranks_of(out)) == 2)
        os.kill(ranks_of(out)[1], signal.SIGKILL)
        began = time.monotonic()
        _, err = started.communicate()
        assert time.monotonic() - began < 300  # the ranks themselves would wait for a day
    assert started.returncode == 1, err
    lines = [line for line in err.splitlines() if line]
    assert "goes on from step" in lines[0]
    assert lines[1].startswith("another rank was lost, and all have ended")
    assert len(lines) == 2
    assert len(list((out / "checkpoints").glob("*-part-0001.safetensors"))) in (1, 2)
    record = read_json(out / "run.json")
    assert (record["status"], record["ranks"]) == ("failed", 2)
    cswf.output("resume", out, "--device", "cpu")
    assert read_json(out / "run.json")["samples_sha256"] == alone(tmp_path)


@pytest.mark.parametrize(
    ("codes", "status", "said"),
    [
        ({1: -9, 0: 1}, 1, ""),  # rank 0 has seen it, and said so
        ({1: -9, 0: 143}, 1, "rank 1 was ended by SIGKILL"),  # PyTorch has seen it first
        ({0: -11, 1: -15}, 1, "rank 0 was ended by SIGSEGV"),
        ({0: -35, 1: -15}, 1, "rank 0 was ended by signal 35"),
        ({1: -15}, 1, "rank 1 was ended by SIGTERM"),
        ({0: 2, 1: 143}, 2, ""),
        ({1: 2, 0: 143}, 2, ""),
        ({0: 143, 1: -9}, 143, ""),  # SIGTERM to rank 0 alone
    ],
)
def test_the_status_is_that_of_the_rank_which_failed_and_not_of_those_ended_with_it(
    codes, status, said, caplog
):
    assert status_of(codes) == status
    assert [record.getMessage().startswith(said) for record in caplog.records] == [True] * bool(said)


@pytest.mark.slow
def test_torchrun_starts_a_lost_rank_again_and_the_run_goes_on_by_itself(tmp_path):
    out = tmp_path / "run"
    own = ("-m", "cswf_core", "run", *SMALL, "--device", "cpu", "--out", str(out), "--resume")
    with ended_afterwards(out), launched(*TORCHRUN, "--max-restarts", "1", *own) as started:
        wait_until(lambda: checkpointed(out) and len(ranks_of(out)) == 2)
        os.kill(ranks_of(out)[1], signal.SIGKILL)
        started.communicate()
    assert started.returncode == 0
    record = read_json(out / "run.json")
    assert record["status"] == "done"
    assert record["resumed"][0]["step"] > 0
    assert record["samples_sha256"] == alone(tmp_path)


@pytest.mark.slow
def test_ctrl_c_saves_the_run_of_all_ranks(tmp_path, cswf):
    out = tmp_path / "run"
    command = (*CSWF, "run", *SMALL, "schedule.steps=2000", "outputs.checkpoint_every=1000")
    command = (*command, "--devices", "2", "--device", "cpu", "--out", out)
    with ended_afterwards(out), launched(*command) as started:
        wait_until(lambda: (out / "metrics.jsonl").exists() and len(ranks_of(out)) == 2)
        os.kill(started.pid, signal.SIGINT)
        _, err = started.communicate()
    assert started.returncode == 130, err
    assert read_json(out / "run.json")["status"] == "interrupted"
    assert checkpointed(out)
    assert not ranks_of(out)
    assert "goes on from step" in err


def test_mistakes_are_told_once_and_before_ranks_start(cswf, apart, tmp_path):
    assert "1 or more, or all; got 'two'" in cswf.refusal("run", *SMALL, "--devices", "two")
    wrong = apart.completed("run", "digits", "particles.count=0", "--devices", "2", "--device", "cpu")
    assert wrong.returncode == 2
    assert wrong.stderr.count("particles.count") == 1
    (tmp_path / "note.txt").touch()
    taken = cswf.refusal("run", *SMALL, "--devices", "2", "--device", "cpu", "--out", tmp_path)
    assert "is not empty" in taken


def test_for_a_run_that_is_done_no_ranks_are_started(cswf, digits_run):
    assert "there is nothing left to do" in cswf.output("resume", digits_run, "--devices", "2")


TINY = ("particles.count=600", "schedule.steps=3", "schedule.directions=60", *SMALL[5:])


def test_an_update_of_two_ranks_is_that_of_one(tmp_path):
    small = (*TINY, "online.sets=2", "online.arrivals=[]")
    launch(load_recipe("online-digits", small), RunFolder(tmp_path / "first"), device="cpu")
    recipe = load_recipe(tmp_path / "first/recipe.yaml")
    recipe = with_arrival(recipe, choose_data("{use: digits, classes: [5, 6]}", recipe.registry, (1, 8, 8)), 2)

    def update(ranks: Ranks) -> str:
        before = read_predecessor(RunFolder(tmp_path / "first"))
        if not ranks.leads:
            follow(recipe, ranks, "cpu", before.counts)
            return ""
        folder = RunFolder(tmp_path / f"on {ranks.size}")
        facts = before.launch_next(recipe, folder, device="cpu", ranks=ranks)
        if not ranks.alone:
            ranks.dismiss()
        assert facts["particles"] > 600
        return facts["samples_sha256"]

    assert on_ranks(2, tmp_path / "ranks", update)[0] == update(Ranks())


@pytest.mark.slow
def test_all_ranks_of_an_update_make_room_for_new_classes(tmp_path, apart):
    run = ("run", "digits", *TINY, "data.classes=[0, 1]", "--device", "cpu", "--devices", "2", "--quiet")
    assert apart.completed(*run, "--out", tmp_path / "first").returncode == 0
    digests = []
    for count in (1, 2):
        new = ("--data", "{use: digits, classes: [5]}", "--device", "cpu", "--devices", str(count))
        ended = apart.completed("update", tmp_path / "first", *new, "--out", tmp_path / str(count))
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.count("condition.room becomes 3, and all data are counted") == 1
        digests.append(read_json(tmp_path / str(count) / "run.json")["samples_sha256"])
    assert digests[0] == digests[1]


def test_a_rank_ends_if_its_starter_is_gone_before_the_ranks_have_met(monkeypatch):
    def meet() -> None:
        with suppress(Exception), joined("cpu"):
            pass
        os._exit(2)

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), STARTER: str(2**22)}
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", **place}.items():
        monkeypatch.setenv(name, value)
    rank = multiprocessing.get_context("fork").Process(target=meet)
    rank.start()
    rank.join(60)
    rank.kill()
    assert rank.exitcode == 1
