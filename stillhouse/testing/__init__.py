"""Tests without a model: a provider that answers from a script, and rollouts of a project's tools and rewards.

    from stillhouse.testing import completion, rehearse

    def test_the_price_is_looked_up():
        answers = [completion(tool_calls=[("price", '{"item": "tea"}')]), completion("It costs 4.")]
        rehearsal = rehearse("config.yaml", {"prompt": "What does tea cost?"}, answers)
        assert rehearsal.trajectory.messages[2]["content"] == "4"

`SimulatedProvider` is the endpoint alone, also with limits, latencies and faults;
`python -m stillhouse.testing` serves one.
"""

from stillhouse.testing.provider import SimulatedProvider
from stillhouse.testing.rehearsal import Rehearsal, rehearse
from stillhouse.testing.reply import ReceivedRequest, Reply, Script, completion, error

__all__ = [
    "ReceivedRequest",
    "Rehearsal",
    "Reply",
    "Script",
    "SimulatedProvider",
    "completion",
    "error",
    "rehearse",
]
