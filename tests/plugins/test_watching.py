"""Watchers: one that fails is named; it ends the runs that asked for it, and no others."""

from __future__ import annotations

import json
import logging

import attrs
import pytest

from cswf_core import hookimpl
from cswf_core.errors import LostRankError, PluginError, RunError
from cswf_core.interfaces import Owner
from cswf_core.plugins import Watcher, Watchers
from tests.conftest import small_flow
from tests.plugins.conftest import GOOD

SMALL = ("particles.count=10", "schedule.steps=3", "schedule.directions=200", "--device", "cpu")
FAILING = GOOD.replace("{name}", "axis") + "\n@hookimpl\ndef after_step(state):\n    1 / 0\n"
LISTED = """
import attrs
from cswf_core import hookimpl
from cswf_core.interfaces import Observer

class Failing:
    @hookimpl
    def after_step(self, state):
        1 / 0

@attrs.frozen
class Listed(Observer):
    def watch(self, folder):
        return Failing()

@hookimpl
def register_observers(register):
    register("failing", Listed)
"""


@attrs.define
class Steps:
    """Counts steps; `seen` makes it one that has no hash."""

    seen: int = 0

    @hookimpl
    def after_step(self, state):
        self.seen += 1


@attrs.frozen
class Raising:
    """Raises an error at every step."""

    error: BaseException

    @hookimpl
    def after_step(self):
        raise self.error


OWNER = Owner("watcher", "main", "acme", "1.0")


def test_a_package_that_nobody_asked_for_is_named_switched_off_and_ends_no_run(install, cswf, tmp_path, caplog):
    install("acme-watch", FAILING, "2.5")
    assert cswf("run", "digits", *SMALL, "--out", tmp_path / "out", "--quiet").status == 0
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "done"
    (said,) = [record for record in caplog.records if "switched off" in record.getMessage()]
    assert said.levelno == logging.WARNING
    sentence = said.getMessage()
    assert sentence.startswith("watcher 'main' (acme-watch 2.5): after_step raised ZeroDivisionError: division")
    assert sentence.endswith("acme_watch_module.py:23); it is switched off for the rest of this run")


def test_one_that_the_recipe_lists_ends_the_run_with_its_name(install, cswf, tmp_path):
    install("acme-watch", LISTED, "2.5")
    out = tmp_path / "out"
    said = cswf.refusal("run", "digits", "observers=[failing]", *SMALL, "--out", out, "--quiet")
    assert said.startswith("observer 'Failing' (acme-watch 2.5): after_step raised ZeroDivisionError")
    assert json.loads((out / "run.json").read_text())["status"] == "failed"


def test_one_of_a_file_is_named_by_its_file(cswf, tmp_path):
    (tmp_path / "watch.py").write_text(LISTED)
    run = ("run", "digits", "observers=[failing]", *SMALL, "--out", tmp_path / "out", "--quiet")
    assert cswf.refusal(*run, "--plugins-dir", tmp_path).startswith("observer 'Failing' (watch.py): after_step")


def test_one_that_a_program_hands_over_ends_the_flow_with_its_name():
    flow = small_flow(observers=(Raising(ZeroDivisionError("oh")),))
    named = r"^observer 'Raising' \(tests.plugins.test_watching\): after_step raised"
    with pytest.raises(PluginError, match=named):
        flow.run()


def test_others_go_on_watching_when_one_is_switched_off(caplog):
    first, last = Steps(), Steps()
    flow = small_flow(observers=(first, Watcher(OWNER, Raising(RunError("no disk"))), last))
    flow.run()
    assert first.seen == last.seen == 3
    (said,) = caplog.messages
    assert said.startswith("watcher 'main' (acme 1.0): after_step raised RunError: no disk; it is switched off")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LostRankError("rank 1 is gone")])
def test_an_interruption_or_a_lost_rank_is_no_fault_of_a_watcher(error):
    with pytest.raises(type(error)):
        small_flow(observers=(Watcher(OWNER, Raising(error)),)).run()


def test_a_sentence_for_people_ends_the_flow_as_it_is():
    with pytest.raises(RunError, match=r"^no disk$"):
        small_flow(observers=(Raising(RunError("no disk")),)).run()


def test_hooks_are_called_in_the_order_of_pluggy():
    calls = []

    class Last:
        @hookimpl(trylast=True)
        def after_run(self):
            calls.append("last")

    class First:
        @hookimpl(tryfirst=True)
        def after_run(self):
            calls.append("first")

    class Usual:
        @hookimpl
        def after_run(self):
            calls.append("usual")

    Watchers([First(), Usual(), Last()]).tell("after_run", flow=None)
    assert calls == ["first", "usual", "last"]


def test_the_listing_has_watchers_and_their_hooks(install, cswf):
    install("acme-watch", FAILING, "2.5")
    rows = json.loads(cswf.output("plugins", "--json"))
    (row,) = [row for row in rows if row["kind"] == "watcher"]
    assert (row["name"], row["distribution"], row["status"]) == ("main", "acme-watch", "ok")
    assert row["hooks"] == ["after_step"]
    assert row["summary"] == "Watches every run: after_step."
