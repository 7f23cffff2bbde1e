"""The engines that a sampler drives: `SamplingEngine` decodes with one version of the student's weights."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.training.model.student import Student
from stillhouse.training.ranks import Ranks
from stillhouse.training.sharding import gathered


class SamplingEngine(Protocol):
    """Decodes any number of requests at once; `stillhouse.serving.generator.Generator` is one as it is."""

    def submit(self, request: GenerationRequest) -> int:
        """Queue a request and return its handle; handles grow in the order of submission."""

    def step(self) -> list[tuple[int, Generation]]:
        """Advance and return the completions that finished, with their handles, in no order; may be empty."""


class SamplingEngines(Protocol):
    """Makes the engines of one training."""

    max_context: int | None
    """Most tokens of a sequence; None where only the student bounds them."""

    def engine(self, version: int) -> AbstractContextManager[SamplingEngine]:
        """Enter an engine over the student's weights, of `version` updates, which must not change inside the block.

        Raises EndpointError if a server that samples cannot be reached or refused the weights.
        """

    def close(self) -> None:
        """Release what the engines hold; called once, at the end."""


class SampledByFirst:
    """Takes part in handing a shared student over to the server that samples for the first process."""

    max_context: int | None = None

    def __init__(self, student: Student, ranks: Ranks) -> None:
        self._student, self._ranks = student, ranks
        self._version: int | None = None

    @contextmanager
    def engine(self, version: int) -> Iterator["SampledByFirst"]:
        """Do what `VllmEngines.engine` does of which every process has a part."""
        if version != self._version:
            self._student.save(Path(), self._ranks)
        if self._version is None:
            with gathered(self._student.step):
                pass
        self._version = version
        yield self

    def submit(self, request: GenerationRequest) -> int:
        """See `SamplingEngine`."""
        raise RuntimeError("the first process samples")

    def step(self) -> list[tuple[int, Generation]]:
        """See `SamplingEngine`."""
        return []

    def close(self) -> None:
        """See `SamplingEngines`."""
