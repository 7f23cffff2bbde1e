"""The state of every random generator of a process, as plain JSON."""

import random
from collections.abc import Sequence

import numpy as np
import torch

from stillhouse.types import JsonObject


def random_state() -> JsonObject:
    """The state of torch's, Python's and numpy's generators, that of the current CUDA device included."""
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    key = numpy_state["state"]["key"].tolist()
    return {
        "torch": _to_hex(torch.get_rng_state()),
        "cuda": _to_hex(torch.cuda.get_rng_state()) if torch.cuda.is_initialized() else None,
        "python": random.getstate(),
        "numpy": {**numpy_state, "state": {**numpy_state["state"], "key": key}},
    }


def restore_random_state(state: JsonObject) -> None:
    """Puts every generator back to where `random_state` found it."""
    torch.set_rng_state(_from_hex(state["torch"]))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(_from_hex(state["cuda"]))
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    numpy_state = state["numpy"]
    key = np.array(numpy_state["state"]["key"], dtype=np.uint32)
    np.random.set_state({**numpy_state, "state": {**numpy_state["state"], "key": key}})


def restore_random_state_of_rank(states: Sequence[JsonObject], rank: int) -> None:
    """Puts the generators of `rank` back to its own of the states that all ranks saved.

    A rank that was not there then gets a state of its own, which follows from the first rank's: training goes on with
    more ranks or fewer, if not bit for bit.
    """
    restore_random_state(states[rank] if rank < len(states) else states[0])
    if rank >= len(states):
        seed = int(torch.randint(2**31, ()).item()) + rank
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)


def _to_hex(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _from_hex(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
