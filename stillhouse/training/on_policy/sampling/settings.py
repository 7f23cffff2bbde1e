"""What a sampler is told of how to sample."""

import logging
from typing import Protocol

logger = logging.getLogger(__name__)


class SamplingSettings(Protocol):
    """Settings of a sampler: `OnPolicyConfig` has them, among other things."""

    @property
    def group_size(self) -> int: ...
    @property
    def max_concurrent(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def max_turns(self) -> int: ...
    @property
    def seed(self) -> int: ...


def warn_of_another_distribution(settings: SamplingSettings) -> None:
    """Says in the log where what is sampled is not the distribution that the student has when it is used."""
    if settings.top_p < 1.0 or settings.temperature not in (0.0, 1.0):
        logger.warning(
            "samples are drawn with temperature %g and top_p %g: what is learnt from them is about that distribution "
            "and not the one the student has when it is used with 1 and 1, and with top_p below 1 the "
            "log-probabilities of sampling and training differ by the mass that was cut off",
            settings.temperature,
            settings.top_p,
        )
