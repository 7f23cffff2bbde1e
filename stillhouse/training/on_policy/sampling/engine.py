"""The engines that a sampler drives: `SamplingEngine` decodes with one version of the student's weights."""

from contextlib import AbstractContextManager
from typing import Protocol

from stillhouse.serving.generation import Generation, GenerationRequest


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
