"""Commands that only read recipes and plugins import neither PyTorch nor NumPy, and work where others do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes import PYTHON, completed

pytestmark = pytest.mark.processes

READING = """
import io, sys
from contextlib import redirect_stdout
from cswf_core.cli import program

for words in (
    "--help", "--version", "recipes", "recipes --json", "plugins", "plugins --json", "plugins conv-stack",
    "data --help",
    "check cifar10-class", "show digits --json", "cite fid-cifar10", "schema", "new projection my-rays",
):
    with redirect_stdout(io.StringIO()) as printed:
        try:
            assert program.cli.main(words.split(), standalone_mode=False) in (None, 0)
        except SystemExit as ended:
            assert not ended.code
    assert printed.getvalue(), words
    assert not {"torch._C", "numpy._core"} & set(sys.modules), words
    assert words != "--help" or "yaml" not in sys.modules
"""
USING = """
import sys
from cswf_core.cli import deferred

deferred.defer()
import torch
from torch import Tensor

Alias = Tensor | None
Device = torch.device
assert deferred.is_deferred() and not isinstance(3, Tensor) and not issubclass(int, Tensor)
{use}
assert not deferred.is_deferred()
assert sys.modules["torch"] is torch and Tensor is torch.Tensor and Device is torch.device
import torch.nn
assert (torch.zero, torch.nn.layer) == (0, "layer")
assert isinstance(Tensor(), Alias) and not isinstance(3, Alias)
"""


def test_commands_that_read_import_neither_pytorch_nor_numpy(tmp_path):
    environment = {**os.environ, "CSWF_LOAD_PLUGINS": ""}
    done = completed(PYTHON, "-c", READING, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "use",
    [
        "assert type(Device()).__name__ == 'device'",
        "assert torch.__version__ == '2'",
        "from torch.nn import layer; assert layer == 'layer'",
        "from torch import nn; assert nn.layer == 'layer'",
        "assert Tensor.made() == 'made'",
        "class Own(Tensor):\n    pass\nassert Own.mro()[1] is torch.Tensor",
    ],
)
def test_whatever_uses_pytorch_gets_it(use, tmp_path):
    """Here PyTorch is a small package of its name."""
    types = "class device: pass\nclass dtype: pass\nclass Tensor:\n    made = staticmethod(lambda: 'made')\n"
    files = {
        "torch/__init__.py": f"{types}zero = 0\n__version__ = '2'\n",
        "torch/nn/__init__.py": "layer = 'layer'\n",
        "using.py": USING.format(use=use),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    done = completed(PYTHON, tmp_path / "using.py", env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    assert done.returncode == 0, done.stderr


NUMBERS = """
from cswf_core.cli import deferred

deferred.defer()
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Small = np.uint8
assert deferred.is_deferred("numpy") and not isinstance(3, np.ndarray)
assert isinstance(np.zeros(2), np.ndarray)
assert not deferred.is_deferred("numpy") and deferred.is_deferred("torch")
assert Small is np.uint8 and Bytes is NDArray and NDArray[Small]
"""


def test_whatever_uses_numpy_gets_it_and_pytorch_waits(tmp_path):
    done = completed(PYTHON, "-c", NUMBERS, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    assert done.returncode == 0, done.stderr


IMPORTING = """
import sys
before = set(sys.modules)
import cswf_core.cli
new = {name.partition(".")[0] for name in set(sys.modules) - before}
assert new <= {"cswf_core", "__future__"}, new  # handlers of signals come first
sys.argv = ["cswf", "check", "digits", "projection=rays", "--plugins-dir", sys.argv[1]]
try:
    cswf_core.cli.main()
except SystemExit as ended:
    assert not ended.code
assert "torch.nn" in sys.modules
import cswf_plugins.observers.tensorboard, cswf_core.session.run
for name in ("torchvision", "cleanfid", "sklearn", "scipy", "tensorboard", "matplotlib"):
    assert name not in sys.modules, name
"""


def test_a_plugin_that_uses_pytorch_is_read_as_any_other_and_nothing_else_that_is_slow_is_imported(tmp_path):
    (tmp_path / "layers.py").write_text(
        "import attrs\n"
        "import torch.nn as nn\n"
        "from torch import Tensor\n"
        "from cswf_core import hookimpl\n"
        "from cswf_plugins.projections.uniform import Uniform\n"
        "class Layer(nn.Module):\n"
        "    weight: Tensor\n"
        "@attrs.frozen\n"
        "class Rays(Uniform):\n"
        "    '''Rays.'''\n"
        "@hookimpl\n"
        "def register_projections(register):\n"
        "    register('rays', Rays)\n"
    )
    environment = {**os.environ, "CSWF_LOAD_PLUGINS": ""}
    done = completed(PYTHON, "-c", IMPORTING, tmp_path, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "digits: fine\n", "")
