"""A run on several devices: a rank for each, started and joined by PyTorch's own `torch.distributed`.

`cswf run --devices N` starts N ranks of the same command on this machine, as `torchrun` does on one or several.
Rank 0 is the run; the others follow it (`follow`). On a CPU a rank has one thread, as the bits of a product may
depend on their number.
"""

from __future__ import annotations

import datetime
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from cswf_core.errors import LostRankError, RunError, excerpt
from cswf_core.flow.flow import Flow
from cswf_core.interfaces.metric import PartWork, Tell
from cswf_core.kernels.memory import require_memory
from cswf_core.numbers import whole_number
from cswf_core.online import Counts, planned_data
from cswf_core.ranks import Dismissed, Ranks, part_of
from cswf_core.recipe import Recipe, build_flow, choose_device
from cswf_core.recipe.render import to_yaml
from cswf_core.runs.checkpoints import SIGNALS, define_checkpoint_commands
from cswf_core.runs.record import versions

STARTER = "CSWF_STARTER"
"""Variable with the number of the process that has started the ranks."""

COMMAND = f"""
import sys
sys.path[:] = [folder for folder in sys.path if folder] + [{str(Path(__file__).parents[2])!r}]
sys.argv[0] = "cswf"
from cswf_core.cli import main
main()
"""
"""What a rank runs: `cswf`, which imports nothing from the folder it is called in, as `python -m` would."""


def number_of(devices: str | None, device: str) -> int | None:
    """Return how many ranks `--devices N` or `--devices all` means here; None: it was not given."""
    if devices is None:
        return None
    chosen = choose_device(device)
    here = torch.cuda.device_count() if chosen.type == "cuda" else os.cpu_count() or 1
    if devices == "all":
        return here
    count = whole_number(devices)
    if not count:
        raise RunError(
            f"--devices takes the number of devices to use, 1 or more, or all; got '{excerpt(devices)}'. To "
            "choose one GPU by its number, write --device cuda:0"
        )
    if chosen.type == "cuda" and chosen.index is None and count > here:
        raise RunError(
            f"--devices {count} was asked for, and PyTorch sees {here} CUDA devices here; `--device cuda:0` "
            "has all ranks share one, and `--device cpu` takes the CPU"
        )
    own = 256 * 10**6  # bytes that PyTorch alone takes in each rank's process
    require_memory(count * own, f"{count:,} processes", "take fewer (--devices)")
    return count


def is_rank() -> bool:
    """Return whether this process was started as one of several ranks."""
    return number_from("WORLD_SIZE", 1) > 1


def number_from(name: str, usual: int) -> int:
    """Return the whole number that an environment variable of torchrun's has; one sentence if it has none."""
    value = os.environ.get(name, str(usual))
    number = whole_number(value)
    if number is None:
        raise RunError(f"the environment variable {name} must be a whole number, got '{excerpt(value)}'")
    return number


def start(count: int) -> int:
    """Start this command as `count` ranks on this machine, wait for their end, and return the exit status."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ[STARTER] = str(os.getpid())
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # ranks say themselves what is to be said
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=uuid.uuid4().hex,
        max_restarts=0,
        local_addr="localhost",
    )
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and hasattr(config, "signals_to_handle"):
        config.signals_to_handle = "SIGTERM,SIGINT,SIGQUIT"  # `nohup` wants it so; PyTorch 2.6 cannot
    try:
        elastic_launch(config, sys.executable)("-c", COMMAND, *sys.argv[1:])
    except ChildFailedError as error:
        return status_of({rank: failure.exitcode for rank, failure in error.failures.items()})
    except SignalException as error:
        return 128 + int(error.sigval)
    except (RuntimeError, OSError) as error:
        raise RunError(f"ranks could not be started: {' '.join(str(error).split())[:200]}") from None
    return 0


def status_of(codes: Mapping[int, int]) -> int:
    """Return the exit status of ranks that have ended with these, the first to fail first; tell a signal.

    When a rank has failed, PyTorch ends the others with SIGTERM. Rank 0 says itself why it has failed.
    """
    first = next(iter(codes.items()), (0, 1))
    ended = (None, -signal.SIGTERM, 128 + signal.SIGTERM)
    rank, code = first if codes.get(0) in ended else (0, codes[0])
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        sentence = "rank %s was ended by %s, and the others with it; `cswf resume` goes on with a run"
        logging.getLogger("cswf").error(sentence, rank, name)
    return code if code > 0 else 1


@contextmanager
def joined(device: str) -> Iterator[tuple[Ranks, str]]:
    """Join the other ranks, of which this process is one; yield the ranks and this one's device."""
    own = own_device(device)
    # NCCL refuses two ranks on one card, which they are where somebody has named it.
    shared = own.type == "cpu" or choose_device(device).index is not None
    backend = "gloo" if shared else "cpu:gloo,cuda:nccl"
    one_thread(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    met = _end_with_starter()
    try:
        # Rank 0 may evaluate for hours; that one is gone is seen at once.
        patience = datetime.timedelta(days=1)
        store, rank, size = next(rendezvous("env://", timeout=patience))
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"cswf/{again}", store)  # where ranks that were lost have left addresses
        with _silent():  # Gloo says how many it has met
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
        met.set()
    except (RuntimeError, ValueError) as error:
        raise RunError(f"the ranks could not meet: {' '.join(str(error).split())[:200]}") from None
    ranks = Ranks(rank, size)
    try:
        yield ranks, str(own)
    finally:
        if ranks.leads:
            with suppress(LostRankError):
                ranks.dismiss()
        with suppress(RuntimeError):
            dist.destroy_process_group()


def one_thread(device: str) -> None:
    """Compute with one thread on a CPU, as each of several ranks does."""
    if choose_device(device).type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def follow(recipe: Recipe, ranks: Ranks, device: str, counts: Counts | None = None) -> None:
    """Take all steps of a run together with rank 0, which leads it, and carry out its commands.

    `counts` are those of the data of an earlier run, from which this one goes on.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides when all end
    with suppress(Dismissed):
        flow = build_flow(recipe, device=device, counts=counts, ranks=ranks)
        agree(flow, recipe, planned_data(flow).digest())
        define_checkpoint_commands(flow)
        SharedWork(ranks, flow.device)
        ranks.receive_commands()
        for _ in flow:
            pass
        while True:  # until rank 0 ends it
            ranks.receive_commands()


class SharedWork:
    """Work on many items, of which each rank does some: a `ShareOut` for evaluations."""

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        """Learn to do a share of it; for all ranks."""
        self.ranks = ranks
        self.device = device
        self._tell: Tell = lambda *_: None
        ranks.define_command("work", self, SharedWork._share)

    def __call__(self, work: PartWork, items: Tensor, together: int, tell: Tell) -> Tensor:
        """Return a row for each item, of which `together` stay together; rank 0 hears of its own progress."""
        self._tell = tell
        rows: Tensor = self.ranks.command("work", self, work, items, together)
        return rows

    def _share(self, work: PartWork, items: Tensor, together: int) -> Tensor:
        own = part_of(len(items), together, self.ranks.rank, self.ranks.size)
        rows = work(items[own], self.device, self._tell).cpu()
        return self.ranks.gathered(rows.T.contiguous()).T


def agree(flow: Flow, recipe: Recipe, data_digest: str) -> None:
    """Raise `RunError` if ranks have other recipes, data or versions than each other."""
    if flow.ranks.alone:
        return
    machine = {key: versions()[key] for key in ("cswf", "torch", "numpy") if key in versions()}
    flow.ranks.agree("recipe", to_yaml(recipe.resolved()))
    flow.ranks.agree("data", data_digest)
    flow.ranks.agree("versions", f"{machine} on {flow.device.type}")
    if flow.ranks.leads:
        flow.ranks.begin_commands()


def own_device(device: str) -> torch.device:
    """Return the device of this rank: the one that is named, or the GPU with its number on this machine."""
    chosen = choose_device(device)
    if chosen.type == "cpu" or chosen.index is not None:
        return chosen
    local = number_from("LOCAL_RANK", 0)
    here = torch.cuda.device_count()
    if local >= here:
        raise RunError(f"there are {here} CUDA devices on this machine, and rank {local} of it needs one more")
    return torch.device("cuda", local)


@contextmanager
def _silent() -> Iterator[None]:
    """Hide what libraries print by themselves, without Python."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(number) for number in (1, 2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(nothing, number)
        yield
    finally:
        for number, output in zip((1, 2), before, strict=True):
            os.dup2(output, number)
            os.close(output)
        os.close(nothing)


def _end_with_starter() -> threading.Event:
    """End this rank as SIGTERM does when the process that has started it is gone.

    Returns what is to be set once the ranks have met: until then, a rank waits where no signal reaches it.
    """
    starter = os.environ.get(STARTER)
    met = threading.Event()
    if starter is None:
        return met

    def watch() -> None:
        while os.getppid() == int(starter):
            time.sleep(0.5)
        if not met.is_set():
            os._exit(1)
        if os.environ.get("RANK") == "0":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            time.sleep(30)  # rank 0 saves the run, with this one's help
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return met
