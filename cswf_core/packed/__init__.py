"""Images packed into shards: a folder of files that are mapped into memory as they lie, with checksums."""

from cswf_core.packed.format import MANIFEST, Manifest, find_damage
from cswf_core.packed.images import PackedImages
from cswf_core.packed.loaded import LoadedImages
from cswf_core.packed.writer import pack, refuse_if_taken

__all__ = [
    "MANIFEST",
    "LoadedImages",
    "Manifest",
    "PackedImages",
    "find_damage",
    "pack",
    "refuse_if_taken",
]
