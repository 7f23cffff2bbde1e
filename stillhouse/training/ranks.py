"""The processes that train together: which one this is, its share of the work, and what all of them agree on.

Every method that is not said to be local is collective: each process has to call it, in the same order. Others wait for
a process that does not take part, so decisions that depend on one process alone, such as a signal it received, are
first exchanged (`sum_and_max`).
"""

import itertools
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal, Self, TypeVar

import torch
import torch.distributed as dist

from stillhouse.errors import ConfigError
from stillhouse.types import Sample

T = TypeVar("T")
K = TypeVar("K")

_TIMEOUT: Final = timedelta(minutes=30)
"""Longest wait in a collective: longer than the first process needs to write a checkpoint."""
_POLL_S: Final = 0.02


@dataclass(frozen=True, eq=False)
class Ranks:
    """This process among those that train together: its number, how many there are, and where it computes."""

    rank: int
    size: int
    device: torch.device
    store: dist.Store | None = None
    """Reached by all of several processes."""
    _turns: Iterator[int] = field(default_factory=itertools.count, repr=False)

    @classmethod
    def single(cls, device: torch.device) -> Self:
        return cls(0, 1, device)

    @property
    def is_first(self) -> bool:
        """Return whether this is the process that writes files and reports progress."""
        return self.rank == 0

    def local_microbatches(self, groups: Sequence[Sequence[Sample]]) -> list[list[Sample]]:
        """Return this process's part of the microbatches of a step, which are the same in every process; local."""
        if self.size == 1:
            return [list(group) for group in groups]
        return deal_microbatches(groups, self.size)[self.rank]

    def gather(self, value: T) -> list[T]:
        """Return the picklable `value` of every process, by rank; it travels through the host."""
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def broadcast(self, value: T | None) -> T:
        """Return the picklable `value` of the first process in every one, whose own are not looked at.

        The others wait as long as the first takes to come here, which may be hours when it samples from a server.
        """
        if self.store is not None:
            # No collective waits that long: one of a host that is lost would then end as late.
            turn = f"stillhouse/{next(self._turns)}"
            if self.is_first:
                self.store.set(turn, "")
            while not self.store.check([turn]):
                time.sleep(_POLL_S)
            values = [value]
            dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
            [value] = values
        return value  # type: ignore[return-value]

    def sum_and_max(
        self, sums: Mapping[str, float], maxima: Mapping[str, float]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return sums and maxima over all processes in one exchange, bit for bit the same in every process.

        A flag is a maximum: 1.0 in the processes that raise it. A name that a process lacks, for instance because its
        microbatches are empty, counts as nothing there. NaN in one process makes the result NaN.
        """
        if self.size == 1:
            return dict(sums), dict(maxima)
        parts = self.gather((dict(sums), dict(maxima)))
        return (
            {name: float(values.sum()) for name, values in _columns([part[0] for part in parts]).items()},
            {name: float(values.max()) for name, values in _columns([part[1] for part in parts]).items()},
        )

    def barrier(self) -> None:
        # Waits for all by way of the host: NCCL's own barrier would wait for the device, too.
        self.gather(None)


def merged(parts: Sequence[Mapping[K, T]]) -> dict[K, T]:
    """Return what was gathered by key as one."""
    return {name: value for part in parts for name, value in part.items()}


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, torch.Tensor]:
    """Return the values of each name, in the order of ranks, as float64."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: torch.tensor([row[name] for row in rows if name in row], dtype=torch.float64) for name in names}


@contextmanager
def join_ranks(device: Literal["auto", "cpu", "cuda"]) -> Iterator[Ranks]:
    """Join the processes that torchrun started; a process that torchrun did not start is alone.

    The group is destroyed only when the block ends well. After an exception the connections stay open until the process
    ends: the others then fail after this one has reported its error.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "runtime.device is `cuda`, but torch finds no CUDA device here; use `auto` or `cpu`", code="no-cuda"
        )
    # Job schedulers set WORLD_SIZE, too, for processes that are to start torchrun.
    size = int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else 1
    if size == 1:
        yield Ranks.single(torch.device(device))
        return
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    rank_device = torch.device(device)
    if device == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"runtime.num_processes: process {local_rank} of this host has no CUDA device; the host has "
                f"{torch.cuda.device_count()}. Set runtime.num_processes to that number"
            )
        rank_device = torch.device("cuda", local_rank)
        torch.cuda.set_device(rank_device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        timeout=_TIMEOUT,
        device_id=rank_device if device == "cuda" else None,
    )
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    yield Ranks(rank, size, rank_device, store)
    dist.destroy_process_group()


def deal_microbatches(groups: Sequence[Sequence[Sample]], size: int) -> list[list[list[Sample]]]:
    """Deal microbatches to `size` processes: as many to each, of about as many tokens.

    Processes exchange weights and gradients in every microbatch, so each round lasts as long as its longest one. Rounds
    are therefore made of microbatches of similar length, and a microbatch is split where a process would be idle.

    Returns:
        For each process its microbatches, longest first: each one of `groups` or a part of one. Where there are too few
        samples, microbatches without samples fill up.
    """
    num_rounds = math.ceil(len(groups) / size)
    longest_first = sorted(_split(groups, num_rounds * size), key=_num_tokens, reverse=True)
    dealt: list[list[list[Sample]]] = [[] for _ in range(size)]
    loads = [0] * size
    for start in range(0, num_rounds * size, size):
        row = longest_first[start : start + size]
        row += [[] for _ in range(size - len(row))]
        least_loaded_first = sorted(range(size), key=loads.__getitem__)
        for rank, group in zip(least_loaded_first, row, strict=True):
            dealt[rank].append(group)
            loads[rank] += _num_tokens(group)
    return dealt


def _split(groups: Sequence[Sequence[Sample]], wanted: int) -> list[list[Sample]]:
    """Return `wanted` groups, made by halving the longest that has more than one sample; fewer when none has."""
    parts = [list(group) for group in groups]
    while len(parts) < wanted:
        divisible = [index for index, part in enumerate(parts) if len(part) > 1]
        if not divisible:
            break
        index = max(divisible, key=lambda index: _num_tokens(parts[index]))
        halves: list[list[Sample]] = [[], []]
        for sample in sorted(parts[index], key=lambda sample: len(sample.token_ids), reverse=True):
            min(halves, key=_num_tokens).append(sample)
        parts[index : index + 1] = halves
    return parts


def _num_tokens(group: Sequence[Sample]) -> int:
    return sum(len(sample.token_ids) for sample in group)
