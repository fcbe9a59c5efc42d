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


def test_one_that_the_recipe_lists_ends_the_run_with_the_name_of_its_package_or_file(install, cswf, tmp_path):
    install("acme-watch", LISTED, "2.5")
    run = ("run", "digits", *SMALL, "--quiet", "--out")
    said = cswf.refusal(*run, tmp_path / "out", "observers=[failing]")
    assert said.startswith("observer 'Failing' (acme-watch 2.5): after_step raised ZeroDivisionError")
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "failed"
    (tmp_path / "watch.py").write_text(LISTED)
    said = cswf.refusal(*run, tmp_path / "other", "observers=['watch.py:failing']", "--plugins-dir", tmp_path)
    assert said.startswith("observer 'Failing' (watch.py): after_step")


def test_others_go_on_watching_when_one_is_switched_off(caplog):
    first, last = Steps(), Steps()
    flow = small_flow(observers=(first, Watcher(OWNER, Raising(RunError("no disk"))), last))
    flow.run()
    assert first.seen == last.seen == 3
    (said,) = caplog.messages
    assert said.startswith("watcher 'main' (acme 1.0): after_step raised RunError: no disk; it is switched off")


NAMED = r"^observer 'Raising' \(tests.plugins.test_watching\): after_step raised ZeroDivisionError"


@pytest.mark.parametrize(
    ("error", "ends", "said"),
    [
        (ZeroDivisionError("oh"), PluginError, NAMED),
        (RunError("no disk"), RunError, "^no disk$"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (LostRankError("rank 1 is gone"), LostRankError, "^rank 1 is gone$"),
    ],
    ids=["a fault", "a sentence for people", "Ctrl-C", "a lost rank"],
)
def test_one_that_a_program_hands_over_ends_the_flow_with_its_name_or_its_own_sentence(error, ends, said):
    with pytest.raises(ends, match=said):
        small_flow(observers=(Raising(error),)).run()
    if isinstance(error, KeyboardInterrupt | LostRankError):  # no fault of a watcher, to switch it off for
        with pytest.raises(ends):
            small_flow(observers=(Watcher(OWNER, Raising(error)),)).run()


def test_hooks_are_called_in_the_order_of_pluggy():
    calls = []

    def watcher(name, **order):
        hook = hookimpl(**order)(lambda self: calls.append(name))
        return type(name, (), {"after_run": hook})()

    watchers = [watcher("first", tryfirst=True), watcher("usual"), watcher("last", trylast=True)]
    Watchers(watchers).tell("after_run", flow=None)
    assert calls == ["first", "usual", "last"]


def test_the_listing_has_watchers_and_their_hooks(install, cswf):
    install("acme-watch", FAILING, "2.5")
    rows = json.loads(cswf.output("plugins", "--json"))
    (row,) = [row for row in rows if row["kind"] == "watcher"]
    assert (row["name"], row["distribution"], row["status"]) == ("main", "acme-watch", "ok")
    assert row["hooks"] == ["after_step"]
    assert row["summary"] == "Watches every run: after_step."
