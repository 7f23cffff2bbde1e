"""Tests without a model: rollouts of a project's tools and rewards, answered from a script.

    from stillhouse.testing import completion, rehearse

    def test_the_price_is_looked_up():
        answers = [completion(tool_calls=[("price", '{"item": "tea"}')]), completion("It costs 4.")]
        rehearsal = rehearse("config.yaml", {"prompt": "What does tea cost?"}, answers)
        assert rehearsal.trajectory.messages[2]["content"] == "4"

A project of `stillhouse init` comes with such tests.
"""

from stillhouse.testing.rehearsal import Rehearsal, rehearse
from stillhouse.testing.scripted import completion

__all__ = ["Rehearsal", "completion", "rehearse"]
