"""What a step costs on several devices, reckoned from what was measured on one.

    cswf bench --no-naive --out one.json
    python examples/scaling.py one.json
    python examples/scaling.py one.json --particles 700000 --ranks 1,8,64,512

Each rank draws all directions and composes all maps; everything else is shared out. Two tables of H × (B + 1)
whole numbers of 4 bytes are summed over all ranks, in rings: between the GPUs of a machine, and then between
machines, where each GPU sends its part of the sums of its machine. The time to begin a message is left out, and
so is any overlap of sending with computing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

EACH = ("draw", "tables")
"""Parts that every rank has as a whole."""
OF_PARTICLES = ("lookup", "back-project", "move")
"""Parts that only particles have; the others have data as well."""
BINS = 512


def computing(bench: dict, particles: int, data: int, ranks: int) -> float:
    """Milliseconds that a rank computes."""
    sizes, total = bench["sizes"], 0.0
    before = sizes["particles"], sizes["data"]
    for name, part in bench["parts"].items():
        if name in EACH:
            total += part["ms"]
        elif name in OF_PARTICLES:
            total += part["ms"] * particles / before[0] / ranks
        elif name != "communicate":
            total += part["ms"] * (particles + data) / sum(before) / ranks
    return total


def sending(directions: int, ranks: int, inside: float, between: float, per_machine: int) -> float:
    """Milliseconds that the sums of a step are on their way; speeds are in GB/s, in one direction."""
    size = 2 * directions * (BINS + 1) * 4
    here = min(ranks, per_machine)
    machines = -(-ranks // per_machine)
    local = 2 * (here - 1) / here * size / (inside * 1e6)
    return local + 2 * (machines - 1) / machines * size / here / (between * 1e6)


def main() -> None:
    """Print a row for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="what `cswf bench --out` has written")
    parser.add_argument("--particles", type=int, help="M; that of the bench if left out")
    parser.add_argument("--data", type=int, help="N, likewise")
    parser.add_argument("--ranks", default="1,8,64,512")
    parser.add_argument("--inside", type=float, default=450, help="GB/s between GPUs of a machine")
    parser.add_argument("--between", type=float, default=50, help="GB/s of each GPU between machines")
    parser.add_argument("--per-machine", type=int, default=8, help="GPUs of a machine")
    given = parser.parse_args()
    bench = json.loads(given.bench.read_text(encoding="utf-8"))
    M = given.particles or bench["sizes"]["particles"]
    N = given.data or bench["sizes"]["data"]
    H = bench["sizes"]["directions"]
    one = computing(bench, M, N, 1)
    print(f"M {M:,}  N {N:,}  H {H:,}  {2 * H * (BINS + 1) * 4 / 1e6:.1f} MB summed in a step")
    print(
        f"{'ranks':>6} {'computing':>12} {'sending':>10} {'step':>10} {'times as fast':>14} {'efficiency':>11}"
    )
    for ranks in map(int, given.ranks.split(",")):
        work = computing(bench, M, N, ranks)
        sent = sending(H, ranks, given.inside, given.between, given.per_machine) if ranks > 1 else 0.0
        gain = one / (work + sent)
        row = f"{ranks:>6} {work:>9.2f} ms {sent:>7.2f} ms {work + sent:>7.2f} ms {gain:>14.1f}"
        print(f"{row} {gain / ranks:>10.0%}")


if __name__ == "__main__":
    main()
