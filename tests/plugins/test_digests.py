"""Records say which code made a result: every plugin that takes part has a SHA-256 of its code."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import cswf_plugins
from cswf_core.plugins import Registry
from cswf_core.plugins import plugin as digests_module
from cswf_core.recipe import Recipe, load_recipe
from tests.plugins.conftest import GOOD

SMALL = ["data=digits", "schedule={use: constant, steps: 1, directions: 1}"]


def load(registry: Registry, *changes: str) -> Recipe:
    return load_recipe({}, [*SMALL, *changes], registry=registry)


def digest(folder: Path, name: str) -> str:
    registry = Registry.discover(folder, {})
    return load(registry, f"projection={name}").projection.plugin.owner.sha256


def test_the_digest_of_a_package_is_that_of_all_its_python_files(registry):
    folder = Path(cswf_plugins.__file__).parent
    expected = hashlib.sha256()
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        content = path.read_bytes()
        expected.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    owner = load(registry).projection.plugin.owner
    assert owner.sha256 == expected.hexdigest()
    assert owner.sha256 not in str(owner)


def test_a_package_is_read_once_and_only_for_a_recipe(monkeypatch):
    monkeypatch.setattr(digests_module, "digest_of", lambda files: (read.append(len(files)), "0" * 64)[1])
    digests_module._digest_of_top.cache_clear()
    read: list[int] = []
    registry = Registry.discover(environment={})
    assert not read
    for _ in range(2):
        load(registry)
    assert len(read) == 1
    digests_module._digest_of_top.cache_clear()


def test_a_module_that_is_its_own_package_has_a_digest_of_its_own(install):
    install("acme-axes", GOOD.replace("{name}", "axis"))
    install("acme-more", GOOD.replace("{name}", "more"))
    registry = Registry.discover(environment={})
    first, second = (load(registry, f"projection={name}").projection.plugin.owner for name in ("axis", "more"))
    assert len(first.sha256) == 64
    assert first.sha256 != second.sha256


def test_the_digest_of_a_file_changes_with_its_code_and_with_that_of_modules_beside_it(tmp_path):
    plugin, near, far, other = (tmp_path / f"{name}.py" for name in ("axes", "near", "far", "other"))
    plugin.write_text(GOOD.replace("{name}", "axis").replace("import attrs", "import near, attrs"))
    near.write_text("def later():\n    from .far import x\n")
    far.write_text("x = 1\n")
    other.write_text(GOOD.replace("{name}", "other"))
    digests = [digest(tmp_path, "axis")]
    for path in (plugin, near, far):
        path.write_text(path.read_text() + "# changed\n")
        digests.append(digest(tmp_path, "axis"))
    assert len(set(digests)) == 4
    other.write_text(other.read_text() + "# changed\n")
    assert digest(tmp_path, "axis") == digests[-1]


def test_facts_name_every_plugin_that_takes_part_once_and_in_order(tmp_path):
    code = GOOD.replace("{name}", "mixed").replace(
        'sign: float = parameter("which way", default=1.0)', "several: tuple[ProjectionSampler, ...] = ()"
    )
    (tmp_path / "mixed.py").write_text(code)
    recipe = load(
        Registry.discover(tmp_path, {}),
        "projection={use: mixed, several: [{use: high-pass, of: conv-stack}, uniform, uniform]}",
        "evaluate.metrics=[psnr, {use: sliced-wasserstein, along: orthogonal}]",
        "observers=[tensorboard]",
    )
    facts = recipe.plugin_facts()
    assert facts == sorted(facts, key=lambda fact: list(fact.values()))
    assert [list(fact) for fact in facts] == [["kind", "name", "distribution", "version", "sha256"]] * len(
        facts
    )
    names = [(fact["kind"], fact["name"]) for fact in facts]
    assert len(set(names)) == len(names)
    inside = {("projection", name) for name in ("mixed", "high-pass", "conv-stack", "uniform", "orthogonal")}
    assert inside | {("metric", "psnr"), ("observer", "tensorboard"), ("schedule", "constant")} <= set(names)
    assert len({fact["sha256"] for fact in facts}) == 2
    again = load_recipe(recipe.resolved(), registry=recipe.registry)
    assert again.projection == recipe.projection
    assert again.resolved() == recipe.resolved()


def test_code_without_a_file_has_no_digest():
    assert digests_module.package_digest("nowhere.at.all") == ""


@pytest.mark.parametrize("name", ["a", "a/b"])
def test_a_path_and_its_bytes_both_count(tmp_path, name):
    file = tmp_path / "file"
    file.write_bytes(b"1")
    assert digests_module.digest_of({name: file}) != digests_module.digest_of({"c": file})
