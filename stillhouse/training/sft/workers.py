"""Renders chunks in several processes, in order, with few rows in memory at a time."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing import get_context
from typing import Final

from transformers import PreTrainedTokenizerBase

from stillhouse.errors import TrainingError
from stillhouse.processes.exit import exit_with_parent
from stillhouse.training.sft.render import Chunk, RenderedChunk, Rendering, render_chunk

_WORTH_CHUNKS: Final = 32
"""Chunks from which further processes are worth the seconds that their imports take."""

_worker: tuple[PreTrainedTokenizerBase, Rendering] | None = None
"""Set in worker processes."""


def render_chunks(
    tokenizer: PreTrainedTokenizerBase, chunks: Iterable[Chunk], rendering: Rendering, num_processes: int | None
) -> Iterator[RenderedChunk]:
    """Return `render_chunk` of each, in order, whatever the number of processes; the chunks are read lazily.

    `num_processes` 1 renders in this process; None takes one for each core where there are enough chunks.
    """
    chunks = iter(chunks)
    if num_processes is None:
        first = list(islice(chunks, _WORTH_CHUNKS))
        num_processes = (os.cpu_count() or 1) if len(first) == _WORTH_CHUNKS else 1
        chunks = chain(first, chunks)
    if num_processes == 1:
        return (render_chunk(tokenizer, chunk, rendering) for chunk in chunks)
    return _in_processes(tokenizer, chunks, rendering, num_processes)


def _in_processes(
    tokenizer: PreTrainedTokenizerBase, chunks: Iterator[Chunk], rendering: Rendering, num_processes: int
) -> Iterator[RenderedChunk]:
    pool = ProcessPoolExecutor(
        num_processes,
        # A child forked from a process with threads may inherit a lock that is never released.
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(os.getpid(), tokenizer, rendering),
    )
    waiting: deque[Future[RenderedChunk]] = deque()
    try:
        for chunk in chunks:
            waiting.append(pool.submit(_render, chunk))
            if len(waiting) > 2 * num_processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise TrainingError(
            "a process was killed while it rendered rows, as happens where memory runs out. Set "
            "runtime.num_threads lower and run the same command again"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(parent: int, tokenizer: PreTrainedTokenizerBase, rendering: Rendering) -> None:
    global _worker
    exit_with_parent(parent)
    # Each process has one core: threads of tokenizers would only compete.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker = (tokenizer, rendering)


def _render(chunk: Chunk) -> RenderedChunk:
    assert _worker is not None
    tokenizer, rendering = _worker
    return render_chunk(tokenizer, chunk, rendering)
