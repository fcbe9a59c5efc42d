"""Discovery of plugins: the registry of those that recipes can name, and what is wrong with the broken ones."""

from cswf_core.plugins.plugin import BUILTIN, KINDS, Broken, Plugin, PluginFolders, as_options
from cswf_core.plugins.registry import Registry
from cswf_core.plugins.watching import Watcher, Watchers

__all__ = [
    "BUILTIN",
    "KINDS",
    "Broken",
    "Plugin",
    "PluginFolders",
    "Registry",
    "Watcher",
    "Watchers",
    "as_options",
]
