"""The engines that a sampler drives: `SamplingEngine` decodes with one version of the student's weights."""

from contextlib import AbstractContextManager
from typing import Protocol

from stillhouse.serving.generation import Generation, GenerationRequest


class SamplingEngine(Protocol):
    """Decodes any number of requests at once; `stillhouse.serving.generator.Generator` is one as it is."""

    def submit(self, request: GenerationRequest) -> int:
        """Queues a request and returns its handle; handles grow in the order of submission.

        Raises:
            ValueError: the request leaves nothing to sample.
        """

    def step(self) -> list[tuple[int, Generation]]:
        """Advances, and returns the completions that finished, with their handles, in no order; may be empty."""


class SamplingEngines(Protocol):
    """Makes the engines of one training."""

    @property
    def max_context(self) -> int | None:
        """Most tokens of a sequence; None where only the student bounds them."""

    def engine(self, version: int) -> AbstractContextManager[SamplingEngine]:
        """An engine over the student's current weights, which have had `version` updates.

        The weights must not change inside the block.

        Raises:
            EndpointError: a server that samples cannot be reached or refused the weights.
        """

    def close(self) -> None:
        """Releases what the engines hold; called once, at the end."""
