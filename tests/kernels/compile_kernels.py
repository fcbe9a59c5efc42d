"""Compile Triton kernels for a card that need not be here: `python -m tests.kernels.compile_kernels 90 every`.

Run in a process of its own: kernels that were defined for the interpreter cannot be compiled.
"""

from __future__ import annotations

import itertools
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from cswf_core.kernels.gpu import boxes, following, histogram, knots, philox, products
from cswf_core.kernels.sparse import LOW_TILE, TILE
from cswf_plugins.inception import halves
from cswf_plugins.inception import kernels as network

HALF, REAL, WHOLE, LONG = "*fp16", "*fp32", "*i32", "*i64"
TRANSPORT = {
    "values": HALF, "stride": "i32", "n": "i32", "first_row": "i32", "column": "i32",
    "low_at": REAL, "high_at": REAL, "groups": "*u8", "offsets": REAL, "group_count": "i32", "noises": REAL,
    "below_p": WHOLE, "below_q": WHOLE, "M": "i32", "N": "i32", "low_q": REAL, "high_q": REAL,
    "table": HALF, "pairs": WHOLE, "out": HALF, "out_stride": "i32", "squares": REAL, "most": "i32",
}  # fmt: skip
ADDED = [{"GROUPED": grouped, "NOISY": noisy} for grouped in (False, True) for noisy in (False, True)]
SHARED = {"80": 163 * 1024, "86": 99 * 1024, "90": 227 * 1024, "120": 99 * 1024}
"""Bytes that a program may have, by compute capability."""


def tile(kind: str, *shape: int) -> str:
    """The type of a tensor descriptor."""
    return f"tensordesc<{kind}[{','.join(map(str, shape))}]>"


def kernels(shared_memory: int):
    """Yield each kernel with its arguments' types, its constants in the forms it is used in, and stages."""
    work = {"B": 1024, "ROUNDS": 11, "BLOCK": histogram.VALUES_AT_A_TIME, "SHARED": True}
    work["THREADS"] = 32 * histogram.WARPS
    parts = ("COUNTS", "COMPOSES", "LOOKS_UP")
    for name, forms in zip((*parts, None), (ADDED[::3], ADDED[:1], ADDED[::3], ADDED), strict=True):
        for added in forms:  # neither or both, and where all is done each by itself, too
            does = {part: name in (part, None) for part in parts}
            yield histogram._transport, TRANSPORT, {**does, "TAILED": name is None, **added, **work}
    for table, pairs, bins in ((HALF, WHOLE, 4096), (REAL, LONG, 2048)):
        form = {**dict.fromkeys(parts, True), **ADDED[-1], **work}
        more = {"TAILED": True, "B": bins, "ROUNDS": 13}
        yield histogram._transport, {**TRANSPORT, "table": table, "pairs": pairs}, {**form, **more}
    for kind, out in (("uniform", REAL), ("normal", REAL), ("uniform64", "*fp64")):
        for stored in (False, True):
            numbers = dict.fromkeys(("key", "stream", "first"), "i64")
            drawing = {"out": out, "keys": LONG if stored else out, **numbers, "count": "i32"}
            yield philox._draw, drawing, {"KIND": kind, "STORED": stored, "BLOCK": 1024}
    pattern = {"starts": WHOLE, "lengths": WHOLE}
    ends = {"low": REAL, "high": REAL, "H": "i32", "depth": "i32"}
    for rows in (TILE, LOW_TILE):
        columns = TILE * TILE // rows
        there = {"theta": tile("fp16", rows, 32), **pattern, "z": tile("fp16", 32, columns)}
        values = {"out": tile("fp16", rows, columns), **ends}
        tiles = {"TM": rows, "TN": columns, "PACKED": True}
        yield products._project, {**there, **values}, tiles, products.BOXES_AHEAD[rows]
    for rows, adds, moves, placed, halved in itertools.product((TILE, LOW_TILE), *[(False, True)] * 4):
        moved = (
            placed if rows == LOW_TILE else adds == placed == halved
        )  # low tiles have places; of others, two forms
        if moved if moves else not (placed or halved):
            delta, box = tile("fp16", 32, TILE * TILE // rows), tile("fp16", rows, 32)
            back = {"theta": box, **pattern, "delta": delta, "x": REAL, "rows": LONG, "factor": REAL}
            halves = {"half": HALF, "places": LONG, "half_width": "i32"}
            sizes = {"d": "i32", "n": "i32", "depth": "i32"}
            goes = {"u": tile("fp32", rows, TILE * TILE // rows) if adds or not moves else delta}
            forms = {"ADDS": adds, "MOVES": moves, "PLACED": placed, "HALVED": halved}
            tiles = {"TM": rows, "TN": TILE * TILE // rows}
            stages = products.under_way(rows, shared_memory, sums=not (adds or moves))
            yield products._back_project, {**back, **goes, **halves, **sizes}, {**tiles, **forms}, stages
    found = {"low": REAL, "high": REAL, "ends": REAL, "H": "i32", "columns": "i32"}
    yield products._ends, found, {"BLOCK_H": 32, "BLOCK_C": 128}
    yield from packing_kernels()
    for flag in (False, True):
        shape = {"d": "i32", "n": "i32"}
        halving = {"x": REAL, "plus": REAL, "rows": LONG, "out": HALF, **shape, "out_width": "i32"}
        yield products._halve, halving, {"ADDS": flag, "PLACED": flag, "BM": 16, "BN": 128}
    for flag, values in itertools.product((False, True), (HALF, REAL)):
        beside = dict.fromkeys(("groups", "cells"), "*u8" if flag else REAL)
        numbers = dict.fromkeys(("offsets", "centre", "reach", "delta", "squares"), REAL)
        sizes = dict.fromkeys(("stride", "n", "group_count", "H"), "i32")
        forms = {"GROUPED": flag, "CELLS": flag, "SIDE": 6, "BLOCK": 4096}
        yield knots._displace, {"values": values, **beside, **numbers, **sizes}, forms
    for flag in (False, True):
        follows = {"G": REAL, "S": REAL, "z": REAL, "rank": LONG if flag else REAL, "half": HALF}
        sizes = {"side": "i32", "n": "i32", "half_width": "i32"}
        tiles = {
            "PLACED": flag,
            "TM": following.TILE_COORDINATES,
            "TN": following.TILE_SAMPLES,
            "BK": following.TILE_TERMS,
        }
        yield following._follow, {**follows, **sizes}, tiles, 3
    yield from feature_network_kernels()


def feature_network_kernels():
    """Yield the kernels of the feature network."""
    reads = {"x_high": HALF, "x_low": HALF}
    weights = {"w_high": HALF, "w_low": HALF, "factor": REAL, "bias": REAL}
    writes = {"y_high": HALF, "y_low": HALF}
    image = ("pixels", "out_height", "out_width", "height", "width", "x_stride", "y_stride")
    sizes = dict.fromkeys(image, "i32")
    places = dict.fromkeys(("taps", "columns", "stride", "above", "left", "linear"), "i32")
    counts = dict.fromkeys(("inputs", "outputs"), "i32")
    for inputs, outputs in halves.FORMS:
        size = halves.chosen_tile(inputs, outputs)
        tiles = {"BM": size.pixels, "BN": size.channels, "BK": size.depth, "EVEN": inputs % size.depth == 0}
        types = {**reads, **weights, **writes, **sizes, **counts, **places}
        yield network._convolve, types, tiles, size.stages, size.warps
    strides = {"image_stride": "i32", "channel_stride": "i32"}
    constants = {"BM": network.ENTERING, "OUTPUTS": 32}
    yield network._enter, {"images": REAL, **weights, **writes, **sizes, **strides}, constants
    for average in (False, True):
        pooled = dict(zip(("BM", "BN"), network.POOLED, strict=True))
        types = {**reads, "bias": REAL if average else HALF, **writes, **sizes, **places}
        more = {"channels": "i32", "padding": "i32"}
        yield network._pool, {**types, **more}, {"AVERAGE": average, **pooled}


def packing_kernels():
    """Yield the kernels that pack directions, from a matrix and from filters."""
    geometry = dict.fromkeys(("H", "d", "height", "width", "dilation", "side"), "i32")
    source = {"values": REAL, "scale": REAL, "row": LONG, "column": LONG, **geometry}
    several = {"filters": REAL, "factor": REAL, "scales": REAL, "channels": "i32", **source}
    yield boxes._order, {"key": WHOLE, "order": LONG, "H": "i32"}, {"MANY": 32, "OTHERS": 256}
    boxed = {"starts": WHOLE, "lengths": WHOLE, "depth": "i32"}
    yield boxes._cover, {"touched": "*i8", "width": "i32", **boxed}, {"WIDE": 32, "CHUNK": 2048}
    middle = {"position": REAL, "rank": LONG, "key": WHOLE, "grid_width": "i32"}
    order = {"order": LONG, "count": "i32"}
    marks = {"along": LONG, "place": LONG, "by_tile": "*i8", "by_piece": "*i8"}
    marked = {**source, **order, **marks, "tile_width": "i32", "piece_width": "i32"}
    packed = {**source, **order, **boxed, "coordinates": LONG, "out": HALF}
    for flag, rows, others in ((False, LOW_TILE, TILE), (True, TILE, LOW_TILE)):
        kind = {"PATCHES": flag, "SCALED": flag}
        yield boxes._lengths, several, {"SCALED": flag, "MANY": 8, "BLOCK": 256}
        yield boxes._keys, {**source, **middle}, {**kind, "BLOCK_D": 1024}
        yield boxes._touched, marked, {**kind, "TILE": rows, "PIECE": others}
        yield boxes._pack, packed, {**kind, "ACROSS": flag, "ROWS": rows, "WIDE": 32}


def fullest(shared_memory: int):
    """Return the last form of each kernel, in which it does most."""
    return {form[0].__name__: form for form in kernels(shared_memory)}.values()


def known_multiples(kernel, types) -> dict[tuple[int], list[list[object]]]:
    """Return which arguments of the feature network's convolutions Triton sees to be multiples of 16.

    Only then are rows copied whole, some steps ahead, and shared memory is taken for them.
    """
    if kernel is not network._convolve:
        return {}
    even = ("x_stride", "y_stride", "inputs", "outputs")
    pointers = [name for name, kind in types.items() if kind.startswith("*")]
    return {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in (*even, *pointers)}


def main() -> None:
    """Compile for a compute capability, `every` form or the `fullest` ones, and print a line for each."""
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    forms = {"every": kernels, "fullest": fullest}[sys.argv[2]]
    for kernel, types, constants, *stages in forms(SHARED[sys.argv[1]]):
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        options = histogram.COMPILED if kernel is histogram._transport else {"num_warps": 4}
        if stages:
            options = {**options, **dict(zip(("num_stages", "num_warps"), stages, strict=False))}
        compiled = triton.compile(
            ASTSource(kernel, signature, constants, known_multiples(kernel, types)),
            target=target,
            options=options,
        )
        print(kernel.__name__, constants, compiled.metadata.shared, flush=True)
        if compiled.metadata.shared > SHARED[sys.argv[1]]:
            sys.exit(f"{kernel.__name__} takes more shared memory than a multiprocessor has")
        if kernel is histogram._transport and "fma.rn.f64" in compiled.asm["ptx"]:
            sys.exit("a product and a sum are rounded once, in some forms of a kernel whose forms must agree")


if __name__ == "__main__":
    main()
