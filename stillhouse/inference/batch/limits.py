"""Limits of a batch endpoint: none that a window or a pace would keep."""

from typing import Final

from stillhouse.inference.rate_limit import Caps, Controller, RateControl

MAX_REQUESTS: Final = 50_000
"""Requests of one batch at OpenAI (https://platform.openai.com/docs/guides/batch), hence how many to ask at once."""


def batch_controller() -> Controller:
    """A controller of its own for a collection through a batch endpoint, which queues what it is given.

    What the endpoint's other paths allow is no measure here; a batch refused for too many tokens in the queue still
    shuts the gate.
    """
    return Controller(RateControl(MAX_REQUESTS, Caps(MAX_REQUESTS)))
