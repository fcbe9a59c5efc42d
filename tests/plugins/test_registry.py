"""The plugin door: who gets in, who is listed as broken, and how names are told apart."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from cswf_core.errors import PluginError
from cswf_core.plugins import Registry
from cswf_core.plugins.registry import class_fault
from cswf_core.recipe.sections import recipe_schema
from tests.plugins.conftest import GOOD


def discover(load: str | None = None, plugins_dir: Path | None = None) -> Registry:
    return Registry.discover(plugins_dir, {} if load is None else {"CSWF_LOAD_PLUGINS": load})


def test_built_ins_come_through_the_door(registry):
    owners = {(p.owner.kind, p.owner.name): p.owner.distribution for p in registry.plugins}
    assert owners["projection", "uniform"] == "cswf"
    kinds = {"projection", "cdf", "condition", "schedule", "coordinates", "dataset", "metric", "observer"}
    assert {kind for kind, _ in owners} == kinds
    assert not registry.broken


def test_the_classes_of_built_ins_are_as_those_of_others_must_be(registry):
    assert [fault for plugin in registry.plugins if (fault := class_fault(plugin.factory))] == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise OSError('libfoo is missing')", "OSError: libfoo is missing"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("class Panic(BaseException): pass\nraise Panic('lost')", "Panic: lost"),
        ("x = 1", "it implements no hook"),
        (GOOD.replace("@hookimpl\n", ""), "register_projections lacks its decorator: write @hookimpl above it"),
        ("def broken(:", "SyntaxError"),
        (
            GOOD.replace("register_projections", "register_projection"),
            "no hook 'register_projection'; did you mean",
        ),
        (GOOD.replace("def register_projections(register)", "def register_projections(reg)"), "reg"),
    ],
)
def test_a_plugin_that_fails_to_load_is_listed_and_harms_nothing(install, code, reason):
    install("bad", code)
    install("good", GOOD.replace("{name}", "axis"))
    registry = discover()
    assert [b.owner.distribution for b in registry.broken] == ["bad"]
    assert reason in registry.broken[0].reason
    assert registry.find("projection", "axis")
    assert registry.find("projection", "uniform")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (GOOD.replace("Axis)\n", "Axis())\n"), "leave out the parentheses"),
        (GOOD.replace("@attrs.frozen\n", ""), "must be an attrs class"),
        (GOOD.replace("def sample", "def sampel"), "Axis lacks sample"),
        (GOOD.replace("(ProjectionSampler)", ""), "Axis does not derive from ProjectionSampler"),
        *(
            (
                GOOD.replace('"{name}"', repr(name)),
                "small letters a-z, digits, '-', '_' and '.', and begins with",
            )
            for name in ("a:b", "", "two words", "Axis", "-axis", "äxis", 3)
        ),
        (GOOD + '    register("axis", Axis)\n', "registered twice"),
        (GOOD + "    1 / 0\n", "ZeroDivisionError"),
        (GOOD + "    raise SystemExit(3)\n", "SystemExit"),
        (GOOD.replace("sign: float", "use: float"), "a parameter cannot be called 'use'"),
        (GOOD.replace("sign: float", "sign: 'Unknown'"), "types of its parameters cannot be read"),
        (GOOD.replace("default=1.0", "default=torch.ones(2)"), "default of parameter 'sign' is a Tensor"),
        (
            GOOD.replace("default=1.0", "default=attrs.Factory(lambda s: 1, takes_self=True)"),
            "depends on the object",
        ),
    ],
)
def test_an_offer_that_breaks_the_contract_is_refused_with_its_kind(install, code, reason):
    install("bad", code.replace("{name}", "axis"))
    registry = discover()
    assert [(b.owner.kind, b.owner.distribution) for b in registry.broken] == [("projection", "bad")]
    assert reason in registry.broken[0].reason
    with pytest.raises(PluginError, match="unknown projection 'axis'"):
        registry.find("projection", "axis")


def test_the_kind_of_a_plugin_that_cannot_be_imported_is_read_from_its_text(install, tmp_path):
    install("bad", GOOD.replace("import attrs", "import nothing_of_that_name, attrs"))
    (tmp_path / "worse.py").write_text("def register_metrics(r): pass\ndef register_cdfs(r): pass\n1 / 0\n")
    (tmp_path / "worst.py").write_bytes(b"\xff\xfe")
    broken = {(b.owner.kind, b.owner.distribution) for b in discover(plugins_dir=tmp_path).broken}
    assert broken == {("projection", "bad"), ("cdf", "worse.py"), ("metric", "worse.py"), ("", "worst.py")}


def test_two_plugins_with_one_name_are_refused_and_a_distribution_picks_one(install):
    install("one", GOOD.replace("{name}", "axis"), "1.1")
    install("two", GOOD.replace("{name}", "axis"), "2.2")
    registry = discover()
    with pytest.raises(PluginError, match=r"offered by one 1.1 and two 2.2: write 'one:axis' or 'two:axis'"):
        registry.find("projection", "axis")
    assert registry.find("projection", "two:axis").owner.distribution == "two"
    assert registry.find("projection", "cswf:uniform")
    with pytest.raises(PluginError, match="unknown projection 'three:axis'"):
        registry.find("projection", "three:axis")


def test_a_plain_name_means_the_built_in_plugin_whatever_else_is_installed(install, cswf):
    install("acme", GOOD.replace("{name}", "uniform"), "1.1")
    install("other", GOOD.replace("{name}", "uniform"), "2.0")
    registry = discover()
    assert registry.find("projection", "uniform").owner.distribution == "cswf"
    assert registry.find("projection", "acme:uniform").owner.distribution == "acme"
    assert {"uniform", "acme:uniform", "other:uniform"} <= set(registry.names("projection"))
    assert cswf.output("check", "digits", "projection=uniform")
    rows = json.loads(cswf.output("plugins", "--json"))
    clashing = {row["distribution"]: row for row in rows if row["name"] == "uniform"}
    assert [clashing[name]["status"] for name in ("cswf", "acme", "other")] == ["ok", "second", "second"]
    assert clashing["acme"]["note"] == "a built-in plugin has this name: write 'acme:uniform' for this one"
    others = "'acme:uniform' and 'other:uniform' mean the others of this name"
    assert clashing["cswf"]["note"] == f"a recipe that says 'uniform' means this one; {others}"
    assert not any(row["error"] for row in clashing.values())
    uses = [
        m["properties"]["use"]["enum"] for m in recipe_schema(registry)["$defs"]["projection"]["anyOf"][1:-1]
    ]
    assert ["acme:uniform"] in uses
    assert ["uniform", "cswf:uniform"] in uses


def test_two_modules_of_one_distribution_cannot_offer_the_same_name(install, tmp_path):
    install("acme", GOOD.replace("{name}", "axis"))
    (tmp_path / "site/acme_second_module.py").write_text(GOOD.replace("{name}", "axis"))
    points = tmp_path / "site/acme-1.0.dist-info/entry_points.txt"
    points.write_text(points.read_text() + "second = acme_second_module\n")
    registry = discover()
    assert registry.find("projection", "axis").owner.distribution == "acme"
    (broken,) = registry.broken
    assert broken.reason == "projection 'axis' is offered by another module of acme too"


def test_the_environment_chooses_which_distributions_are_imported(install):
    install("acme-one", GOOD.replace("{name}", "axis-one"))
    install("acme-two", GOOD.replace("{name}", "axis-two"))

    def names(load):
        return {n for n in discover(load).names("projection") if n.startswith("axis")}

    assert names(None) == {"axis-one", "axis-two"}
    assert names("acme_one") == {"axis-one"}
    assert names(" acme-one , acme-two") == {"axis-one", "axis-two"}
    assert names("") == set()
    assert "uniform" in discover("").names("projection")
    install("acme-loud", "raise RuntimeError('imported')")
    assert not discover("").broken
    assert discover().broken
    missing = discover("nobody")
    assert [b.owner.name for b in missing.broken] == ["nobody"]


def test_one_file_plugins_are_loaded_from_a_folder(tmp_path):
    (tmp_path / "axes.py").write_text(GOOD.replace("{name}", "axis"))
    (tmp_path / "worse.py").write_text("1 / 0")
    (tmp_path / "deepest.py").write_text("1" + " + 1" * 10_000)
    (tmp_path / "_private.py").write_text("1 / 0")
    os.mkfifo(tmp_path / "pipe.py")  # to open it would wait for a writer
    registry = discover(plugins_dir=tmp_path)
    assert registry.find("projection", "axes.py:axis").summary == "One coordinate at a time."
    assert [b.owner.name for b in registry.broken] == ["deepest", "worse"]
    with pytest.raises(PluginError, match=r"unknown projection 'mine'.*plugin 'worse' is broken: ZeroDiv"):
        registry.find("projection", "mine")
    (tmp_path / "cswf.py").write_text(GOOD.replace("{name}", "uniform"))
    registry = discover(plugins_dir=tmp_path)
    assert registry.find("projection", "cswf:uniform").owner.version
    assert registry.find("projection", "cswf.py:uniform").owner.distribution == "cswf.py"
    assert registry.distributions["cswf"]
    with pytest.raises(PluginError, match="is not a folder"):
        discover(plugins_dir=tmp_path / "nowhere")


def test_an_unknown_name_suggests_the_nearest_and_blames_a_broken_plugin(install):
    install("axis", "1 / 0")
    registry = discover()
    for kind, name, said in (
        ("projection", "uniforn", "unknown projection 'uniforn'; did you mean 'uniform'"),
        ("projection", "axis:diagonal", r"'axis:diagonal'.*plugin 'main' is broken: ZeroDivisionError"),
        ("projection", "diagonal", r"'diagonal'; plugin 'main' is broken: Zero.*; known: conv-stack, "),
        ("projection", "one-hot", "projection 'one-hot'; another kind has that name: condition;"),
        ("condition", "other:one-hot", "unknown condition 'other:one-hot'; did you mean 'one-hot'"),
    ):
        with pytest.raises(PluginError, match=said):
            registry.find(kind, name)


def test_a_plugin_may_watch_flows(install, cswf, tmp_path):
    code = GOOD.replace("{name}", "axis") + (
        "\n@hookimpl\ndef after_step(state):\n"
        f"    open({str(tmp_path / 'seen')!r}, 'a').write(f'{{state.total_step}} ')\n"
    )
    install("watcher", code)
    small = ["particles.count=10", "schedule.steps=2", "schedule.directions=5"]
    cswf.output("run", "digits", "projection=axis", *small, "--out", tmp_path / "out", "--device", "cpu")
    assert (tmp_path / "seen").read_text() == "1 2 "
    plugins = json.loads((tmp_path / "out/run.json").read_text())["plugins"]
    digest = plugins["projection"].pop("sha256")
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert plugins["projection"] == {"name": "axis", "distribution": "watcher", "version": "1.0"}


def test_a_plugin_that_returns_wrong_directions_is_named_on_the_command_line(install, cswf, tmp_path):
    install("acme-axes", GOOD.replace("{name}", "axis"))
    options = ("projection={use: axis, sign: 2}", "--out", tmp_path / "out", "--quiet")
    said = "sample must return directions of unit length, got length 2 in row 0"
    assert cswf.refusal("run", "digits", *options) == f"projection 'axis' (acme-axes 1.0): {said}\n"
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "failed"


def test_the_table_and_its_json(install, cswf):
    install("bad", "1 / 0")
    install("one", GOOD.replace("{name}", "axis"))
    install("two", GOOD.replace("{name}", "axis"))
    rows = json.loads(cswf("plugins", "--json").out)
    keys = "kind name distribution version status summary error note parameters hooks"
    assert all(list(row) == keys.split() for row in rows)
    by_owner = {(row["distribution"], row["name"]): row for row in rows}
    assert by_owner["cswf", "uniform"]["status"] == "ok"
    assert by_owner["bad", "main"]["status"] == "broken"
    assert by_owner["bad", "main"]["error"] == "ZeroDivisionError: division by zero"
    assert by_owner["one", "axis"]["status"] == "ambiguous"
    assert by_owner["one", "axis"]["parameters"] == [
        {"name": "sign", "type": "a number", "required": False, "default": 1.0, "help": "which way"}
    ]
    table = cswf("plugins").out
    assert "uniform" in table
    assert "ZeroDivisionError" in table
