"""Plugins with something wrong, and the check that the error names them."""

from __future__ import annotations

import attrs
import pytest

from cswf_core.errors import PluginError
from cswf_core.interfaces import Owner, Projection
from cswf_core.plugins import KINDS
from tests.conftest import small_flow

OWNERS = {kind: Owner(kind, "mine", "acme-plugins", "1.2") for kind in KINDS}


def variant(contract: type, **members: object) -> type:
    """A plugin class with other members."""
    return attrs.frozen(type("Mine", (contract,), members))


def named(error: pytest.ExceptionInfo, kind: str) -> None:
    """Check that an error is one sentence that begins with the plugin's name."""
    assert str(error.value).startswith(f"{kind} 'mine' (acme-plugins 1.2): ")
    assert "\n" not in str(error.value)


def refused(complaint: str, **part: object) -> None:
    """Check that a flow with this part ends with a sentence that names the plugin."""
    (kind,) = part
    with pytest.raises(PluginError, match=complaint) as error:
        small_flow(**part, owners=OWNERS).run()
    named(error, kind)


class Spied(Projection):
    """Directions by way of an operator that notes who asks for what, and of which shape."""

    def __init__(self, theta, calls=None):
        self.theta, self.calls = theta, [] if calls is None else calls

    @property
    def shape(self):
        return tuple(self.theta.shape)

    def project(self, x):
        self.calls.append(("project", tuple(x.shape)))
        return self.theta @ x

    def adjoint(self, a):
        self.calls.append(("adjoint", tuple(a.shape)))
        return self.theta.T @ a

    def dense(self):
        self.calls.append(("dense", self.shape))
        return self.theta
