"""A teacher in this process, and one in a process of its own that hands over its hidden states.

Dimensions: R hidden size of the teacher.
"""

import multiprocessing
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Literal, NamedTuple

import torch
import torch.multiprocessing as torch_processes
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.sft.workload import Shape
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.on_policy.teachers.local import LocalSettings, LocalTeacher
from stillhouse.training.repeatability import use_fast_float32_products

Way = Literal["shared memory", "socket"]


class Work(NamedTuple):
    """What a process of its own is asked for."""

    way: Way
    samples: Sequence[ScoredSample]
    """Empty: hand over again what was computed last."""
    first_row: int = 0
    """Of the shared memory."""


def new_model(shape: Shape, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    """With random weights, frozen."""
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape.config(), dtype=dtype)
    return model.eval().requires_grad_(False)


def new_teacher(model: PreTrainedModel, top_k: int = 0) -> LocalTeacher:
    """A teacher in this process, as trainings have them."""
    vocabulary = len(model.get_output_embeddings().weight)
    return LocalTeacher(LocalSettings("own", 1.0, 1.0, 16_384, vocabulary, top_k), model, torch.device("cpu"))


class TeacherApart:
    """A teacher in a process of its own.

    Args:
        shape: of the model, whose weights are those of `new_model` by the same seed.
        dtype: of its weights.
        seed: of its weights.
        num_threads: of that process.
        num_rows: hidden states that the shared memory holds.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype, seed: int, *, num_threads: int, num_rows: int) -> None:
        self._shared_NR = torch.zeros(num_rows, shape.hidden, dtype=dtype).share_memory_()
        self._received_NR = torch.zeros_like(self._shared_NR)
        self._requests, theirs = multiprocessing.Pipe()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            arguments = (shape, dtype, seed, num_threads, self._shared_NR, theirs, listener.getsockname())
            self._process = torch_processes.get_context("spawn").Process(target=_answer, args=arguments, daemon=True)
            self._process.start()
            self._wire, _ = listener.accept()
        self.cpu_s = 0.0
        """CPU seconds of that process, for all that it answered."""

    def ask(self, work: Work) -> None:
        """Asks without waiting."""
        self._requests.send(work)

    def receive(self, way: Way, num_tokens: int, first_row: int = 0) -> Tensor:
        """The hidden states [num_tokens, R] of what was asked for first among what was not received yet."""
        rows = slice(first_row, first_row + num_tokens)
        hidden_NR = self._shared_NR[rows]
        if way == "socket":
            hidden_NR = self._received_NR[rows]
            bytes_, done = _bytes_of(hidden_NR), 0
            while done < len(bytes_):
                done += self._wire.recv_into(bytes_[done:])
        self.cpu_s += self._requests.recv()
        return hidden_NR

    def close(self) -> None:
        """Ends the process."""
        self._wire.close()
        self._process.terminate()
        self._process.join()


def _answer(
    shape: Shape,
    dtype: torch.dtype,
    seed: int,
    num_threads: int,
    shared_NR: Tensor,
    requests: Connection,
    address: tuple[str, int],
) -> None:
    torch.set_num_threads(num_threads)
    use_fast_float32_products()
    teacher = new_teacher(new_model(shape, dtype, seed))
    with socket.create_connection(address) as wire:
        while True:
            work: Work = requests.recv()
            started = time.process_time()
            if work.samples:
                hidden_NR = teacher.reference(work.samples).hidden_NR.contiguous()
            if work.way == "socket":
                wire.sendall(_bytes_of(hidden_NR))
            else:
                shared_NR[work.first_row : work.first_row + len(hidden_NR)].copy_(hidden_NR)
            requests.send(time.process_time() - started)


def _bytes_of(hidden_NR: Tensor) -> memoryview:
    return hidden_NR.view(torch.uint8).numpy().reshape(-1).data
