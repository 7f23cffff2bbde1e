"""Sampling in the training process, by the weights under training themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

from stillhouse.serving.generator import Generator
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.weights import sampling_weights


class TransformersEngines:
    """Engines over the student as it is.

    Args:
        student: sampled from; in eval mode while it is.
        max_concurrent: completions sampled at once.
    """

    max_context: int | None = None

    def __init__(self, student: Student, max_concurrent: int) -> None:
        self._student = student
        self._max_concurrent = max_concurrent

    @contextmanager
    def engine(self, version: int) -> Iterator[Generator]:
        """See `Engines`."""
        was_training = self._student.model.training
        self._student.model.eval()
        try:
            with self._student.precision(), sampling_weights(self._student):
                # A new one each time: nothing of an earlier batch, such as the layout of its cache, can then tell a
                # continued training from an uninterrupted one.
                generator = Generator(self._student.causal_lm, max_batch=self._max_concurrent)
                try:
                    yield generator
                finally:
                    # Its parts refer to each other: left to itself, it would be collected some time in the training.
                    generator.close()
        finally:
            self._student.model.train(was_training)

    def close(self) -> None:
        """See `Engines`."""
