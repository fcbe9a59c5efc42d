"""`--traceback`: sentences stay, and the way to the error comes before them."""

from __future__ import annotations

import pytest

from cswf_core.cli.options import TRACEBACK

FAULTY = """
import attrs
from cswf_core import hookimpl
from cswf_core.interfaces import ProjectionSampler

def deep():
    return {}["angle"]

@attrs.frozen
class Faulty(ProjectionSampler):
    def sample(self, space, count, draw):
        return deep()

@hookimpl
def register_projections(register):
    register("faulty", Faulty)
"""


@pytest.fixture(autouse=True)
def switched_off(monkeypatch):
    """The option sets the variable, which is to be as before after each test."""
    monkeypatch.setenv(TRACEBACK, "0")


@pytest.fixture
def run(tmp_path):
    """A run whose projection fails."""
    (tmp_path / "faulty.py").write_text(FAULTY)
    return (
        *("run", "digits", "projection=faulty", "--plugins-dir", tmp_path),
        *("--out", tmp_path / "out", "--device", "cpu", "--quiet"),
    )


def test_the_error_of_a_plugin_is_a_sentence_that_names_the_option(cswf, run):
    sentence = cswf.refusal(*run)
    assert "sample raised KeyError: 'angle'" in sentence
    assert sentence.endswith("; --traceback shows the whole of it\n")


@pytest.mark.parametrize("place", ["before", "after", "variable"])
def test_the_traceback_has_the_plugin_s_frames_and_ends_in_the_sentence(cswf, run, monkeypatch, place):
    if place == "variable":
        monkeypatch.setenv(TRACEBACK, "1")
    done = cswf(*{"before": ("--traceback", *run), "after": (*run, "--traceback")}.get(place, run))
    assert done.status == 2
    lines = done.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert any("faulty.py" in line and "in deep" in line for line in lines)
    assert "KeyError: 'angle'" in lines
    assert "sample raised KeyError: 'angle'" in lines[-1]
    assert "--traceback" not in lines[-1]


def test_a_cause_that_the_code_hides_is_shown(cswf, tmp_path):
    (tmp_path / "data.npz").write_bytes(b"junk")
    run = ("run", "digits", f"data={{use: npz, path: {tmp_path / 'data.npz'}}}", "--out", tmp_path / "out")
    assert "cannot be read as .npz" in cswf.refusal(*run)
    err = cswf("--traceback", *run).err
    assert err.count("Traceback (most recent call last):") >= 2
    assert "During handling of the above exception" in err
