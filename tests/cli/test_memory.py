"""Memory: data beyond `--memory-limit` are streamed, a run goes on as it began, freed pages are used again."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

from cswf_core import hookimpl
from cswf_core.cli.options import LEAST_MEMORY
from cswf_core.cli.terminal import keep_freed_memory
from cswf_core.evaluation.samples import read
from cswf_core.kernels.memory import memory_limit, memory_limited
from cswf_core.model import load_model
from cswf_core.packed import pack
from cswf_core.recipe import load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch
from tests.conftest import read_json
from tests.processes import PYTHON, completed

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from many_images import Waves

COUNT = 90_000
"""Images of 3×8×8 whose numbers take 69 MB, more than a quarter of the least limit."""

SMALL = ["schedule.steps=4", "schedule.directions=40", "particles.count=100", "outputs.frames=0", "cdf.bins=32"]


@pytest.fixture(scope="module")
def folder(made_once) -> Path:
    def fill(path: Path) -> None:
        pack(Waves.of(COUNT, 8), path, source={"use": "waves"}, seed=0, per_shard=50_000)

    return made_once("waves", fill)


@pytest.fixture
def overrides(folder) -> list[str]:
    data = f"data={{use: packed, path: {folder}}}"
    return [data, "cdf.data={count: 3000}", "evaluate.metrics=[]", *SMALL]


class Stop:
    """Interrupts a flow after some steps, as Ctrl-C does."""

    @hookimpl
    def after_step(self, flow, state):
        if state.total_step == 2:
            raise KeyboardInterrupt


def test_streamed_data_are_told_and_lead_to_the_same_bits_and_a_run_goes_on_with_its_limit(
    cswf, overrides, tmp_path, caplog
):
    assert cswf("run", "digits", *overrides, "--device", "cpu", "--out", tmp_path / "plain").status == 0
    assert "streamed" not in caplog.text
    scored = [*overrides, "evaluate.metrics=[sliced-wasserstein]", "evaluate.samples=500"]
    limit = ["--memory-limit", "256MB", "--device", "cpu"]
    output = cswf.output("run", "digits", *scored, *limit, "--out", tmp_path / "limited")
    assert "90,000 images take 0.0691 GB as numbers, more than a quarter of a memory of 0.256 GB" in caplog.text
    assert "against 500 of 90,000 real samples" in output
    facts = read_json(tmp_path / "limited" / "run.json")
    assert facts["samples_sha256"] == read_json(tmp_path / "plain" / "run.json")["samples_sha256"]
    assert (facts["memory_limit"], facts["data"]["streamed"]) == (LEAST_MEMORY, True)
    assert memory_limit() is None

    recipe = load_recipe("digits", [*overrides, "outputs.checkpoint_every=1"])
    stopped = tmp_path / "stopped"
    with memory_limited(LEAST_MEMORY), pytest.raises(KeyboardInterrupt):
        launch(recipe, RunFolder(stopped), device="cpu", observers=[Stop()])
    assert cswf("resume", stopped, "--device", "cpu").status == 0
    assert read_json(stopped / "run.json")["samples_sha256"] == facts["samples_sha256"]


def test_data_in_memory_and_streamed_ones_are_not_taken_for_each_other(cswf, overrides, tmp_path):
    recipe = load_recipe("digits", [*overrides, "outputs.checkpoint_every=1"])
    with pytest.raises(KeyboardInterrupt):
        launch(recipe, RunFolder(tmp_path / "run"), device="cpu", observers=[Stop()])
    refusal = cswf("resume", tmp_path / "run", "--device", "cpu", "--memory-limit", "256MB").err
    assert "were in memory, and here they are streamed" in refusal
    assert "take the --memory-limit that it was begun with" in refusal


@pytest.mark.parametrize("size", ["10", "1XB", "-5GB", "", "100MB"])
def test_a_size_that_is_none_is_one_sentence(cswf, size):
    answer = cswf("run", "digits", "--memory-limit", size)
    assert answer.status == 2
    assert "write 500MB, 1.5GB or 2GiB" in answer.err or "is too little" in answer.err


def test_a_model_of_streamed_data_has_the_filters_of_the_run(cswf, overrides, tmp_path):
    run = tmp_path / "run"
    wishes = ["projection={use: data-covariance}", "model.save=true", "cdf.data=null"]
    limit = ["--memory-limit", "256MB", "--device", "cpu"]
    assert cswf("run", "digits", *overrides, *wishes, *limit, "--out", run).status == 0
    model = load_model(run)
    assert model.header.data.streamed
    again = model.retrace(device="cpu")
    samples = read(run).samples
    assert float((again.images().int() - samples.images().int()).abs().float().mean()) < 1


FAULTS = """
import ctypes
import resource
from cswf_core.cli.terminal import keep_freed_memory

library = ctypes.CDLL(None)  # PyTorch for arm64 has an allocator of its own, which keeps memory anyway
library.malloc.restype = library.memset.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def fill(size=48_000_000):  # glibc never keeps that of its own accord
    piece = library.malloc(size)
    library.memset(piece, 1, size)
    library.free(piece)

def faults():
    for _ in range(5):
        fill()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        fill()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults(), keep_freed_memory(), faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library here is not glibc")
@pytest.mark.processes
def test_pages_are_asked_for_once():
    """By the C library's own blocks: on arm64, PyTorch keeps the memory of tensors by itself from 2.10 on."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    many, kept, few = completed(PYTHON, "-c", FAULTS, env=clean).stdout.split()
    assert kept == "True"
    assert 2 * int(few) < int(many)  # 48 MB are 11,700 pages of 4 kB, fewer where pages are larger


def test_what_the_environment_says_stays(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)
    for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "2")
            assert keep_freed_memory() is False
