"""Numbers beyond 64 bits and sizes beyond the machine: a sentence, before anything is allocated or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from cswf_core.recipe import load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch

pytestmark = pytest.mark.usefixtures("elsewhere")

SMALL = ("schedule.steps=2", "schedule.directions=8", "evaluate.metrics=[]", "outputs.frames=0", "cdf.bins=8")
DIGITS = "9" * 5000
"""More digits than Python reads as a number."""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of two steps that has saved a model, by class."""
    folder = tmp_path_factory.mktemp("numbers") / "run"
    overrides = [*SMALL, "model.save=true", "model.knots=5", "particles.count=20"]
    launch(load_recipe("digits", overrides), RunFolder(folder), device="cpu")
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("sample", "RUN", "--count", DIGITS),
        ("sample", "RUN", "--seed", DIGITS),
        ("sample", "RUN", "--label", DIGITS),
        ("sample", "RUN", "--labels", f"0:{DIGITS}"),
        ("sample", "RUN", "--labels", "0:99999999999999999999999"),
        ("sample", "RUN", "--devices", DIGITS),
        ("update", "RUN", "--data", "digits", "--schedule", DIGITS),
        ("bench", "--shape", f"3x{DIGITS}x3"),
        ("bench", "--particles", DIGITS),
        ("bench", "--steps", DIGITS),
        ("check", "digits", f"condition.prior=[{DIGITS}]"),
        ("check", "digits", f"particles.count={DIGITS}"),
        ("check", "digits", "outputs.log_every=9223372036854775808"),
        ("check", "digits", f"outputs.checkpoint_every={DIGITS}h"),
        ("check", "digits", "outputs.snapshots=[1e30]"),
        ("check", "digits", ".".join("a" * 3000) + "=1"),
        ("data", "pack", "digits", "--out", "shards", "--shard-size", f"{DIGITS}x"),
    ],
)
def test_a_number_of_many_digits_is_refused_in_a_sentence_without_them(cswf, run, arguments):
    done = cswf(*(run if word == "RUN" else word for word in arguments))
    assert done.status == 2
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err
    assert len(done.err) < 600
    assert not any(Path().iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sample", "RUN", "--count", "99999999999"), "99,999,999,999 samples of 1×8×8 need 25.6 TB, and this"),
        (("sample", "RUN", "--labels", "0:99999999999"), "`cswf sample --out FOLDER/`, with the slash, writes"),
        (("sample", "RUN", "--devices", "99999999999"), "99,999,999,999 processes need 25.6 EB, and"),
        (("run", "digits", "particles.count=1099511627776"), "in 64 dimensions need 281.5 TB, and"),
        (("run", "digits", "particles.offline=1099511627776"), "in 64 dimensions need 281.5 TB, and"),
        (("run", "TOY", "data.count=1099511627776"), "1,099,511,627,776 points need 52.78 TB, and this"),
        (("bench", "--data", "99999999999"), "99,999,999,999 samples of 3×16×16 in 0 classes need 307.2 TB"),
    ],
)
def test_what_needs_more_memory_than_there_is_says_how_much_before_it_is_allocated(
    cswf, run, arguments, said, tmp_path
):
    toy = "data: {use: toy-2d, target: [{mean: [0, 0]}]}\nschedule: {use: constant, steps: 1, directions: 2}\n"
    (tmp_path / "toy.yaml").write_text(toy)
    words = {"RUN": run, "TOY": tmp_path / "toy.yaml"}
    done = cswf(*(words.get(word, word) for word in arguments))
    assert done.status == 1
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_shards_that_no_disk_holds_are_refused_before_their_folder_is_made(cswf, run, tmp_path):
    said = cswf.refusal("sample", run, "--count", str(2**62), "--out", f"{tmp_path}/shards/")
    assert "4,611,686,018,427,387,904 samples of 1×8×8 need 295.1 EB, and the disk of" in said
    assert not (tmp_path / "shards").exists()
