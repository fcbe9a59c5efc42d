"""Plugins with something wrong, and the check that the error names them."""

from __future__ import annotations

import attrs
import pytest

from cswf_core.errors import PluginError
from cswf_core.interfaces import Owner
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
