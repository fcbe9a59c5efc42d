"""`cswf plugins NAME`: one plugin, with its docs and parameters."""

from __future__ import annotations

import json
import re

from tests.cli.conftest import write_plugin

CODE = '''
"""A projection and a schedule of one name.

When not to use it: never.
"""
import attrs
from cswf_core import hookimpl
from cswf_core.interfaces import ProjectionSampler, Schedule, parameter

@attrs.frozen
class Draw(ProjectionSampler):
    """Draws [nothing]."""

    of: ProjectionSampler
    share: float = parameter("how much", default=0.5, above=0, at_most=1)

    def sample(self, space, count, draw): ...

@attrs.frozen
class Plan(Schedule):
    def stages(self, space, projection): ...

@hookimpl
def register_projections(register):
    register("twin", Draw)

@hookimpl
def register_schedules(register):
    register("twin", Plan)

@hookimpl
def after_run(flow): ...
'''


def test_a_name_shows_every_plugin_that_has_it(cswf, tmp_path):
    (tmp_path / "twins.py").write_text(CODE)
    folders = ("--plugins-dir", tmp_path)
    text = cswf.output("plugins", "twin", *folders)
    drawn, planned = text.split("\n\nschedule twin\n")
    assert drawn.startswith("projection twin\n  from    twins.py\n")
    for part in (
        f"file    {tmp_path / 'twins.py'}",
        "status  ok",
        "hooks   register_projections",
        "Draws [nothing].",
        "When not to use it: never.",
        "  of: the name of a projection or a mapping with 'use'; required\n",
        "  share: a number; above 0; at most 1; default 0.5\n      how much",
    ):
        assert part in drawn
    assert "parameters" not in planned
    assert cswf.output("plugins", *folders, "twin") == text
    assert cswf.output("plugins", "twins.py:twin", *folders) == text


def test_the_json_of_one_plugin_has_its_file_docs_and_digest(cswf, tmp_path):
    (tmp_path / "twins.py").write_text(CODE)
    rows = json.loads(cswf.output("plugins", "twin", "--json", "--plugins-dir", tmp_path))
    assert rows == json.loads(cswf.output("plugins", "--json", "twin", "--plugins-dir", tmp_path))
    assert [row["kind"] for row in rows] == ["projection", "schedule"]
    assert rows[0]["parameters"][1] == {
        "name": "share",
        "type": "a number",
        "required": False,
        "default": 0.5,
        "above": 0,
        "at_most": 1,
        "help": "how much",
    }
    assert rows[0]["docs"].startswith("Draws [nothing].\n\nA projection and a schedule of one name.\n\nWhen")
    assert len(rows[0]["sha256"]) == 64
    assert rows[0]["sha256_of"] == "file"
    package = json.loads(cswf.output("plugins", "uniform", "--json"))[0]
    shown = f"sha256  {package['sha256']} (package: names and contents of its code)\n"
    assert shown in cswf.output("plugins", "uniform")
    listed = json.loads(cswf.output("plugins", "--json", "--plugins-dir", tmp_path))
    (row,) = [row for row in listed if (row["kind"], row["name"]) == ("projection", "twin")]
    assert row.items() <= rows[0].items()


def test_a_watcher_and_a_broken_plugin_are_shown_by_their_names(cswf, tmp_path):
    (tmp_path / "twins.py").write_text(CODE)
    (tmp_path / "torn.py").write_text("1 / 0\n")
    folders = ("--plugins-dir", tmp_path)
    assert cswf.output("plugins", "twins", *folders).startswith("watcher twins\n")
    assert "hooks   after_run" in cswf.output("plugins", "twins", *folders)
    broken = cswf.output("plugins", "torn", *folders)
    assert "status  broken" in broken
    assert "error   ZeroDivisionError: division by zero" in broken


def test_an_unknown_name_gets_the_nearest(cswf):
    assert "'Uniform'; did you mean 'uniform'?" in cswf.refusal("plugins", "Uniform")
    assert cswf.refusal("plugins", "unifrm") == "unknown plugin 'unifrm'; did you mean 'uniform'?\n"
    assert "unknown plugin 'acme:uniform'" in cswf.refusal("plugins", "acme:uniform")


def test_a_plugin_is_proved_by_its_kit(cswf, tmp_path):
    body = """
    def sample(self, space, count, draw):
        theta = draw.sphere(count, space.dimension)
        theta = theta - theta.mean(dim=1, keepdim=True)
        return theta / theta.norm(dim=1, keepdim=True)
    """
    write_plugin(tmp_path / "blind.py", "projection", body)
    done = cswf("plugins", "check", "blind", "--plugins-dir", tmp_path)
    assert done.status == 1
    assert re.search("^failed  directions span the space: .*brightness", done.out, re.MULTILINE)
    assert re.search(r"^\d+ passed, .*\d+ failed", done.out.splitlines()[-1])
    outcomes = json.loads(cswf("plugins", "check", "{use: sorted}", "--json").out)
    assert {outcome["result"] for outcome in outcomes} <= {"passed", "skipped"}
    assert "unknown plugin 'unifrom'; did you mean 'uniform'?" in cswf.refusal("plugins", "check", "unifrom")
