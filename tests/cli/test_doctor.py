"""`cswf doctor`: what works on this machine, what is missing, and what is broken."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.specifiers import SpecifierSet

from cswf_core import installation
from cswf_core.runs import PACKAGES
from cswf_plugins.inception.weights import WHOLE
from tests.cli.conftest import write_plugin
from tests.plugins.image_files import write_idx
from tests.processes import PYTHON, completed


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder of one's own, without data sets and without clean-fid's download."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CSWF_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def findings(cswf, *options: object, status: int = 0) -> dict[str, dict[str, str]]:
    done = cswf("doctor", "--json", *options)
    document = json.loads(done.out)
    assert done.status == status, document
    assert document["works"] == (status == 0)
    return {row["name"]: row for row in document["findings"]}


def plugin(tmp_path: Path, answer: str) -> tuple[str, Path]:
    body = f"def load(self, draw): ...\ndef needed_files(self):\n    {answer}"
    write_plugin(tmp_path / "plugins/faces.py", "dataset", body, "from pathlib import Path")
    return "--plugins-dir", tmp_path / "plugins"


def installed(tmp_path: Path, name: str, version: str, more: str = "") -> None:
    """Put the metadata of a distribution into a folder, without any code."""
    folder = tmp_path / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}")


def test_a_good_installation_works_and_lists_everything_once(cswf):
    printed = cswf.output("doctor")
    assert printed.splitlines()[-1].startswith("all that is needed works; ")
    rows = findings(cswf)
    assert {name.lower() for name in PACKAGES} <= {name.lower() for name in rows}
    assert rows["torch"]["detail"].startswith(metadata.version("torch"))
    assert rows[f"cswf {metadata.version('cswf')}"]["status"] == "ok"
    assert ("cuda:0" if torch.cuda.is_available() else "cuda") in rows
    for name, row in rows.items():
        assert printed.count(f" {name} ") >= 1
        assert row["status"] == "ok" or row["advice"]


def test_missing_data_are_not_broken_and_data_that_are_there_are_named(cswf, tmp_path):
    assert {findings(cswf)[name]["status"] for name in ("mnist", "cifar10", "celeba")} == {"missing"}
    folder = tmp_path / "data/mnist"
    write_idx(folder)
    assert findings(cswf)["mnist"] == {
        "area": "files",
        "name": "mnist",
        "status": "ok",
        "detail": str(folder),
        "advice": "",
    }


def test_a_feature_network_with_other_bytes_is_broken(cswf, tmp_path):
    assert findings(cswf)["feature network"]["status"] == "missing"
    file = tmp_path / "data/inception" / WHOLE
    file.parent.mkdir(parents=True)
    file.write_bytes(b"half of it")
    row = findings(cswf, status=1)["feature network"]
    assert (row["status"], row["detail"].split(",")[0]) == ("broken", f"{file} is not the file of that name")
    assert "remove it" in row["advice"]


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        ("return NeededFiles(name='faces', folder=Path('/f'), path=Path('/f/a'))", "ok", "/f/a"),
        ("return NeededFiles(name='faces', folder=Path('/f'), advice='Ask.')", "missing", "not in /f"),
        ("return NeededFiles(name='faces', folder=Path('/f'), fault='Torn.')", "broken", "Torn."),
        ("return 'none'", "broken", "needed_files must return NeededFiles or None, got str"),
        ("return 1 / 0", "broken", "needed_files raised ZeroDivisionError"),
        ("...\n\nimport nowhere_at_all", "broken", "No module named 'nowhere_at_all'"),
    ],
)
def test_a_data_source_of_one_s_own_is_asked_for_its_files_and_told_if_it_is_broken(
    cswf, tmp_path, answer, status, text
):
    rows = findings(cswf, *plugin(tmp_path, answer), status=int(status == "broken"))
    own = [row for name, row in rows.items() if name in ("faces", "dataset faces", "faces.py")]
    assert any(row["status"] == status and text in row["detail"] for row in own)


def test_an_old_package_and_one_that_is_not_there_are_broken(cswf, tmp_path, monkeypatch):
    installed(tmp_path / "site", "pluggy", "0.1")
    needed = "Requires-Python: >=3.10\nRequires-Dist: pluggy>=1.5\nRequires-Dist: nothing-like-it>=2\n"
    others = "Requires-Dist: never>=1; extra == 'dev'\nRequires-Dist: old>=3; extra == 'more'\n"
    installed(tmp_path / "site", "cswf", "0.1.0", needed + others)
    installed(tmp_path / "site", "old", "2.9")
    monkeypatch.syspath_prepend(tmp_path / "site")
    rows = findings(cswf, status=1)
    assert rows["pluggy"]["detail"] == "0.1, and >=1.5 is needed"
    assert rows["nothing-like-it"]["advice"] == "`pip install 'nothing-like-it>=2'`"
    assert "never" not in rows
    assert rows["old"]["status"] == "broken"
    assert rows["old"]["advice"] == "`pip install 'cswf[more]'` if you need it"
    assert "mnist" not in rows  # plugins are not looked at where packages are broken


@pytest.mark.parametrize("bound", [">=1.5", ">=1.5.0", ">=1", ">=2.0", ""])
def test_versions_are_compared_as_pip_compares_them(bound):
    for version in ("1.5", "1.5.0", "1.10", "1.4.9", "1.5rc1", "1.5.0.dev2", "2.0a1+cu1", "1.5.post1"):
        expected = SpecifierSet(bound).contains(version, prereleases=True)
        assert installation._satisfies(version, bound) == expected, version


def test_without_torch_the_doctor_still_speaks(cswf, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    rows = findings(cswf, status=1)
    assert "cannot be imported" in rows["torch"]["detail"]
    assert rows["runs"]["status"] == "ok"
    program = "import sys; sys.modules.update(torch=None, attrs=None); import cswf_core.cli.doctor"
    assert completed(PYTHON, "-c", program).returncode == 0


def test_an_old_python_a_full_disk_and_a_folder_that_cannot_be_written_are_broken(cswf, tmp_path, monkeypatch):
    monkeypatch.setattr("platform.python_version", lambda: "3.9.1")
    monkeypatch.setattr(installation, "TOO_LITTLE", 10**18)
    (tmp_path / "runs").write_text("a file")
    rows = findings(cswf, status=1)
    assert rows["python"]["detail"] == "3.9.1"
    assert rows["python"]["advice"] == "install cswf with Python >=3.10"
    assert rows["this folder"]["status"] == "broken"
    assert rows["runs"]["detail"] == f"{tmp_path / 'runs'} is a file, not a folder"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
