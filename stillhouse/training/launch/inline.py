"""A training in the flow's own process, for notebooks and debuggers: nothing is guarded, memory stays with the process.

Its log is the process's own.
"""

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from stillhouse.errors import StillhouseError, TrainingError, TrainingKilled
from stillhouse.progress.state import Progress
from stillhouse.training.job import TrainJob
from stillhouse.types import JsonObject


def train_inline(job: TrainJob, progress: Progress) -> JsonObject:
    """Trains here, in the main thread, and leaves torch's settings and generators as they were.

    SIGTERM saves a checkpoint and is then passed on to whoever handled it before, which is nobody as a rule: the
    process ends.

    Raises:
        StillhouseError: as the training raised it.
        TrainingError: it raised something else, which is the cause.
        TrainingKilled: SIGTERM came, and who handled it before went on.
    """
    # Torch is imported where training is to happen, and nowhere else.
    from stillhouse.training.interruption import Interrupted

    try:
        from stillhouse.training.run import run_job

        with _torch_as_before():
            return run_job(job, progress)
    except Interrupted:
        signal.raise_signal(signal.SIGTERM)
        raise TrainingKilled(
            f"{job.method}: stopped by SIGTERM; a checkpoint was saved, the same command continues"
        ) from None
    except StillhouseError:
        raise
    except Exception as error:
        raise TrainingError(f"{job.method}: {type(error).__name__}: {error}") from error


@contextmanager
def _torch_as_before() -> Iterator[None]:
    import torch
    from torch.utils import deterministic
    from transformers.utils import logging as transformers_logging

    from stillhouse.training.loop.checkpoints.random_state import random_state, restore_random_state

    threads = torch.get_num_threads()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    products = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    generators = random_state()
    has_bars = transformers_logging.is_progress_bar_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
        deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
        torch.backends.mkldnn.matmul.fp32_precision = products  # type: ignore[attr-defined]
        restore_random_state(generators)
        if has_bars:
            transformers_logging.enable_progress_bar()
        gc.collect()
        torch.cuda.empty_cache()
