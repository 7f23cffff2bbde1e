import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from stillhouse.training.loop.parallel.ranks import join_ranks


def serve(rank: int, port: int, calls: Connection) -> None:
    """Joins as `rank` and answers calls until it is ended."""
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "pair",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    with join_ranks("cpu") as ranks:
        while True:
            function, args = calls.recv()
            try:
                calls.send((function(ranks, *args), None))
            except Exception:
                calls.send((None, traceback.format_exc()))


class Pair:
    """Two processes, spawned once, that have joined as ranks."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(2)]
        self._calls = [ours for ours, _ in pipes]
        self._processes = [
            context.Process(target=serve, args=(rank, port, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What `function(ranks, *args)` returns in each rank."""
        for calls in self._calls:
            calls.send((function, args))
        results = []
        for calls in self._calls:
            assert calls.poll(60), "a rank waits for the other"
            result, error = calls.recv()
            assert error is None, error
            results.append(result)
        return results

    def stop(self) -> None:
        for process, calls in zip(self._processes, self._calls, strict=True):
            process.kill()
            process.join()
            calls.close()


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.stop()
