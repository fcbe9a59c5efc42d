"""Nothing that a person opens is executed: of every format, a file with a program in it is opened.

One process opens them all, in the folder where they lie, and Python itself tells what happens there: programs
that are started, pickles that name a function, code that is compiled or run, modules that are imported, and
files that are written. See `opening.py`.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from cswf_core.recipe import load_recipe
from cswf_core.runs.durable import fingerprint
from cswf_core.runs.folder import RunFolder
from cswf_core.session import devices
from cswf_core.session.run import launch
from tests.processes import PYTHON, completed
from tests.project.sources import ROOT

pytestmark = pytest.mark.processes

PROGRAM = "open('executed', 'w').close()  # a stranger's program"
"""What would be run; that it was could be seen by a file."""

SMALL = (
    "model={save: true, knots: 13}",
    "particles.count=6",
    "schedule={use: constant, steps: 4, directions: 64}",
    "outputs={frames: 2, checkpoint_every: 2}",
    "evaluate.metrics=[]",
)


class Payload:
    """Runs the program when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return exec, (PROGRAM,)


PICKLE = pickle.dumps(Payload(), protocol=2)
TAGGED = f'!!python/object/apply:builtins.exec ["{PROGRAM}"]'
"""The program as YAML that PyYAML would run."""

POSTSCRIPT = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n{PROGRAM}\n"
"""A picture for which Pillow calls another program."""


def archive(**more: object) -> bytes:
    """An .npz file with an array of objects, which only a pickle can hold."""
    buffer = io.BytesIO()
    strange = np.array([Payload()] * 4, dtype=object)
    np.savez(buffer, images=strange, labels=strange, steps=strange, classes=strange, **more)
    return buffer.getvalue()


def array() -> bytes:
    """An .npy file with an array of objects."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([Payload()], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def script() -> bytes:
    """A file of weights as `torch.save` writes it, with a pickle of ours."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", PICKLE)
        file.writestr("archive/version", "3\n")
    return buffer.getvalue()


def safetensors() -> bytes:
    """A file as safetensors writes it, with a pickle for its header's facts and for its only tensor."""
    facts = {"facts": PICKLE.decode("latin-1"), "recipe": TAGGED}
    tensors = {"particles": {"dtype": "U8", "shape": [len(PICKLE)], "data_offsets": [0, len(PICKLE)]}}
    header = json.dumps({"__metadata__": facts, **tensors}).encode()
    return struct.pack("<Q", len(header)) + header + PICKLE


def stand_in(file: Path, content: bytes) -> None:
    """Put a file in the place of another, and write its checksum and size wherever the other's are."""
    before = fingerprint(file) if file.is_file() else None
    size = file.stat().st_size if before else 0
    file.write_bytes(content)
    if before is not None:
        for record in file.parent.glob("*.json"):
            text = record.read_bytes().replace(before.encode(), fingerprint(file).encode())
            record.write_bytes(text.replace(b'"bytes": %d' % size, b'"bytes": %d' % len(content)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with a model and checkpoints."""
    folder = tmp_path_factory.mktemp("run") / "run"
    launch(load_recipe("digits", SMALL), RunFolder(folder), device="cpu")
    return folder


@pytest.fixture(scope="module")
def folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stranger's folder: files of every format with a program in them."""
    folder = tmp_path_factory.mktemp("strangers")
    for module in ("numpy", "torch", "yaml", "click", "cswf_core", "cswf_plugins", "sitecustomize", "strange"):
        (folder / f"{module}.py").write_text(PROGRAM)
    (folder / "plugins").mkdir()
    (folder / "plugins/strange.py").write_text(f"from cswf_core import hookimpl\n{PROGRAM}")
    for name, text in {
        "tagged.yaml": f"extends: digits\nname: {TAGGED}\n",
        "whole.yaml": TAGGED,
        "module.yaml": "extends: ./strange.py\n",
        "pickled.yaml": "extends: ./pickled\n",
        "plugins.yaml": "extends: digits\nplugins_dir: plugins\n",
        "import.yaml": "extends: digits\nprojection: {use: strange.Payload}\n",
    }.items():
        (folder / name).write_text(text)
    (folder / "pickled").write_bytes(PICKLE)
    (folder / "objects.npz").write_bytes(archive(points=np.zeros((4, 2))))
    (folder / "network.pt").write_bytes(script())
    (folder / "pictures").mkdir()
    (folder / "pictures/a.png").write_text(POSTSCRIPT)
    (folder / "pictures/b.png").write_bytes(PICKLE)
    (folder / "cifar-10-batches-py").mkdir()
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        (folder / "cifar-10-batches-py" / name).write_bytes(PICKLE)
    for name in ("train-images", "t10k-images"):
        (folder / f"{name}-idx3-ubyte").write_bytes(PICKLE)
        (folder / f"{name.replace('images', 'labels')}-idx1-ubyte").write_bytes(PICKLE)
    for name, changed in {
        "run-recipe": {"recipe.yaml": TAGGED.encode()},
        "run-record": {"run.json": PICKLE, "metrics.json": PICKLE, "metrics.jsonl": PICKLE},
        "run-arrays": {"samples.npz": archive(), "frames.npz": archive(), "samples-offline.npz": archive()},
        "run-pictures": {"samples.png": POSTSCRIPT.encode(), "flow.png": PICKLE, "flow.gif": PICKLE},
        "run-header": {"model/model.json": PICKLE},
        "run-shards": {"model/tables-00000.safetensors": PICKLE, "model/fitted.safetensors": PICKLE},
        "run-safetensors": {"model/tables-00000.safetensors": safetensors()},
    }.items():
        shutil.copytree(run, folder / name)
        for file, content in changed.items():
            stand_in(folder / name / file, content)
    for name, content in {"run-checkpoint": PICKLE, "run-facts": safetensors()}.items():
        shutil.copytree(run, folder / name)
        facts = json.loads((folder / name / "run.json").read_text())
        (folder / name / "run.json").write_text(json.dumps(facts | {"status": "interrupted"}))
        for file in (folder / name / "checkpoints").glob("*.safetensors"):
            stand_in(file, content)
    (folder / "packed").mkdir()
    (folder / "packed/manifest.json").write_bytes(PICKLE)
    (folder / "packed/images-00000.npy").write_bytes(array())
    home = folder / "out/home/.cache/cswf/decoded"
    home.mkdir(parents=True)
    return folder


RUNS = ("recipe", "record", "arrays", "pictures", "header", "shards", "safetensors", "checkpoint", "facts")

CALLS = [
    *(["check", f"{name}.yaml"] for name in ("tagged", "whole", "module", "pickled", "plugins", "import")),
    *(["show", f"{name}.yaml"] for name in ("tagged", "plugins", "import")),
    *(["report", f"run-{name}"] for name in RUNS),
    *(["eval", "--metric", "sliced-wasserstein", f"run-{name}"] for name in ("recipe", "record", "arrays")),
    *(["table", "--format", "latex", f"run-{name}"] for name in RUNS),
    *(["inspect", "--check", f"run-{name}"] for name in ("header", "shards", "safetensors")),
    *(["sample", "--count", "2", "--force", f"run-{name}"] for name in ("header", "shards", "safetensors")),
    *(["resume", "--device", "cpu", f"run-{name}"] for name in ("recipe", "record", "checkpoint", "facts")),
    ["eval", "objects.npz", "--against", "digits", "--metric", "sliced-wasserstein"],
    ["eval", "pictures", "--against", "digits", "--metric", "sliced-wasserstein"],
    ["eval", "run-safetensors", "--metric", "fid", "--no-download", "--weights", "network.pt"],
    ["inpaint", "run-header", "pictures/a.png"],
    ["data", "info", "packed"],
    ["data", "check", "packed"],
    ["data", "pack", "pictures", "out/packed"],
    *(
        ["run", "digits", f"data={data}", *SMALL, "--device", "cpu", "--out", f"out/{number}"]
        for number, data in enumerate(
            (
                "{use: npz, path: objects.npz}",
                "{use: image-folder, path: pictures, size: 8}",
                "{use: packed, path: packed}",
                "{use: cifar10, root: ., download: false}",
                "{use: mnist, root: ., download: false}",
            )
        )
    ),
]
"""Commands that open these files; the last word is the folder of a run that some of them write to."""


def test_opening_a_file_of_any_format_executes_nothing_and_writes_nothing_elsewhere(folder):
    calls = folder / "out/calls.json"
    calls.write_text(json.dumps(CALLS))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder / "out/home"),
        "CSWF_DATA": str(folder / "out/data"),
        "TMPDIR": str(folder / "out"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = completed(PYTHON, ROOT / "tests/project/opening.py", PROGRAM, calls, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    # A score says of which commit the program is: git is asked, and only about the program's own folder.
    asked = f"('git', ['git', '-C', {str(ROOT)!r}, "
    assert [event for event in answer["events"] if not event[2].startswith(asked)] == []
    assert not list(folder.rglob("executed"))
    assert "Traceback" not in done.stderr, done.stderr
    ended = dict(zip(map(" ".join, CALLS), answer["statuses"], strict=True))
    # What can be read is shown; a run without a checkpoint begins anew; checksums of strangers may be right.
    shown = ("report", "table", "resume", "inspect", "eval --metric sliced-wasserstein run-record")
    assert {call: status for call, status in ended.items() if status != 2 and not call.startswith(shown)} == {}


def test_the_programs_would_be_executed_by_those_who_trust_them(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def executed() -> bool:
        there = Path("executed").exists()
        Path("executed").unlink(missing_ok=True)
        return there

    import yaml

    pickle.loads(PICKLE)
    assert executed()
    yaml.unsafe_load((folder / "whole.yaml").read_text())
    assert executed()
    with np.load(folder / "objects.npz", allow_pickle=True) as arrays:
        assert len(arrays["images"]) == 4
    assert executed()
    torch.load(folder / "network.pt", weights_only=False)
    assert executed()


def test_a_rank_imports_nothing_from_the_folder_it_is_called_in(folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = completed(PYTHON, "-c", devices.COMMAND, "--version", cwd=folder, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cswf, version")
    assert not (folder / "executed").exists()
