"""What all adapters share: calls that name the plugin when it fails, and checks of tensors."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pluggy
import torch
from torch import Tensor

from cswf_core.errors import CswfError, PluginError
from cswf_core.interfaces import CDFEstimator, DatasetSource, Owner, ProjectionSampler, Schedule
from cswf_core.kernels.columns import is_finite
from cswf_core.kernels.memory import is_out_of_memory

CAPABILITIES: Mapping[type[Any], Mapping[str, tuple[str, ...]]] = {
    ProjectionSampler: {"sees_data": ("fitted",), "adapts": ("adapted",)},
    CDFEstimator: {"displaces": ("displace", "between")},
    Schedule: {"adaptive": ("stop",)},
    DatasetSource: {"starts": ("start",), "opens": ("open",)},
}
"""For each contract: what a plugin declares → the methods that the engine calls only if it does."""


def undeclared(plugin: type[Any]) -> str:
    """Return what is wrong if a plugin class defines a method without declaring that it has it."""
    for contract, capabilities in CAPABILITIES.items():
        if not issubclass(plugin, contract):
            continue
        for capability, methods in capabilities.items():
            own = [name for name in methods if getattr(plugin, name) is not getattr(contract, name)]
            if own and not getattr(plugin, capability):
                return (
                    f"{plugin.__name__} defines {own[0]} and does not declare it: "
                    f"write {capability} = True in the class"
                )
            if not own and getattr(plugin, capability) is True:
                return f"{plugin.__name__} declares {capability} and does not define {' or '.join(methods)}"
    return ""


def parameters_of(plugin: object) -> list[object]:
    """Return the values of a plugin's parameters; none if it is no attrs class."""
    kind: Any = type(plugin)
    return [getattr(plugin, field.name) for field in attrs.fields(kind)] if attrs.has(kind) else []


@contextmanager
def calling(owner: Owner, method: str) -> Iterator[None]:
    """Turn whatever a plugin's code raises into an error that names the plugin and the line."""
    try:
        yield
    except CswfError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        said = f"{owner}: {method} raised {type(error).__name__}: {error}{_line_in_plugin(error)}"
        raise PluginError(said) from error


def _line_in_plugin(error: BaseException) -> str:
    """Return the line of the plugin's own file; nothing if it never got there, as with a wrong signature."""
    core = Path(__file__).parents[1]
    door = Path(pluggy.__file__).parent
    frames = [(Path(f.filename), f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    theirs = [f for f in frames if not (f[0].is_relative_to(core) or f[0].is_relative_to(door))]
    lines = [line for file, line in theirs if file == theirs[0][0]]
    return f" ({theirs[0][0]}:{lines[-1]})" if lines else ""


class Adapter:
    """A plugin behind its checks, and whose it is."""

    plugin: Any
    owner: Owner

    def __init__(self, plugin: Any, owner: Owner) -> None:
        """Take a plugin's place: its flags and numbers that the contract names are the adapter's too."""
        self.plugin = plugin
        self.owner = owner
        for contract in type(self).__bases__[1:]:
            for name in inspect.get_annotations(contract):
                setattr(self, name, getattr(plugin, name))
        for each in (plugin, *parameters_of(plugin)):  # a parameter may be a plugin itself
            fault = undeclared(type(each))
            if fault:
                raise PluginError(f"{owner}: {fault}")

    def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        with calling(self.owner, method):
            return getattr(self.plugin, method)(*arguments, **named)

    def _fault(self, method: str, expected: str, got: str) -> PluginError:
        return faulty(self.owner, method, expected, got)

    def _tensor(
        self, value: object, method: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Return `value` if it is a tensor of that shape and dtype on that device."""
        expected = f"a {sizes(shape)} tensor of {short(dtype)} on {device}"
        if not isinstance(value, Tensor):
            raise self._fault(method, expected, f"{type(value).__name__}")
        if tuple(value.shape) != shape or value.dtype != dtype or value.device != device:
            got = f"{sizes(value.shape) or 'scalar'} of {short(value.dtype)} on {value.device}"
            raise self._fault(method, expected, got)
        if value.requires_grad:
            raise self._fault(method, f"{expected} without gradients", "one that requires grad: detach it")
        return value

    def _like(self, value: object, method: str, like: Tensor) -> Tensor:
        """Return `value` if it is a tensor of the shape, dtype and device of `like`."""
        return self._tensor(value, method, tuple(like.shape), like.dtype, like.device)

    def _finite(self, value: Tensor, method: str) -> Tensor:
        """Return `value` if it has no NaN and no infinity. Reads one number back from the device."""
        if not is_finite(value):
            got = f"{not_finite(value)} of {value.numel()} that are NaN or infinite"
            raise self._fault(method, "finite numbers", got)
        return value

    def _unit(self, rows: Tensor, method: str) -> Tensor:
        """Return `rows` (H×d) if each has length 1, within 10⁻³. Reads numbers back from the device."""
        self._finite(rows, method)
        if len(rows):
            worst, length = farthest_from_unit(rows)
            if abs(length - 1) > 1e-3:
                raise self._fault(method, "directions of unit length", f"length {length:.4g} in row {worst}")
        return rows

    def _named(self, value: object, method: str) -> dict[str, Tensor]:
        """Return `value` if it is tensors by name."""
        if not isinstance(value, dict) or not all(isinstance(part, Tensor) for part in value.values()):
            raise self._fault(method, "tensors by name", type(value).__name__)
        return value

    def _whole(self, value: object, method: str, least: int) -> int:
        """Return `value` if it is a whole number of `least` or more."""
        if not isinstance(value, int) or value < least:
            raise self._fault(method, f"a whole number, {least} or more", repr(value))
        return value


def faulty(owner: Owner, method: str, expected: str, got: str) -> PluginError:
    """Return the error of an answer that does not fit the contract."""
    return PluginError(f"{owner}: {method} must return {expected}, got {got}")


def not_finite(values: Tensor, dim: int | None = None) -> int:
    """Return how many numbers are NaN or infinite; with `dim`, how many rows or columns along it have such."""
    bad = ~torch.isfinite(values)
    return int((bad if dim is None else bad.any(dim=dim)).sum())


def farthest_from_unit(rows: Tensor) -> tuple[int, float]:
    """Return which of some rows (H×d) has the length farthest from 1, and that length; NaN is farthest."""
    lengths = torch.linalg.vector_norm(rows, dim=1)
    worst = int((lengths - 1).abs().nan_to_num(torch.inf).argmax())
    return worst, float(lengths[worst])


def greatest_fall(curves: Tensor) -> float:
    """Return by how much a row (of H×n) falls at most from one column to the next; below 0, it only rises."""
    return float(-curves.diff(dim=1).min())


def parts_apart(a: Tensor, b: Tensor) -> float:
    """Return how far a column of a (d×n) is at most from that of b, in parts of its length."""
    lengths = torch.linalg.vector_norm(b, dim=0).clamp_min(1e-12)
    return float((torch.linalg.vector_norm(a - b, dim=0) / lengths).max())


def transpose_gap(v: Tensor, Au: Tensor, Atv: Tensor, u: Tensor) -> Tensor:
    """Return v·Au − Aᵀv·u, which is 0 for a matrix A and its transpose: n numbers, of columns."""
    return (v * Au).sum(dim=0) - (Atv * u).sum(dim=0)


def sizes(shape: Sequence[int]) -> str:
    """Return a shape as people write it: 3×32×32."""
    return "×".join(map(str, shape))


def short(dtype: torch.dtype) -> str:
    """Return a dtype as people write it: float32."""
    return str(dtype).removeprefix("torch.")
