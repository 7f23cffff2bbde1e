"""How trajectories are scored, from 0 to 1: every function under `@reward`. Their mean is the trajectory's reward.

A function that fails leaves its trajectory without a reward, never with 0.
"""

import re

from stillhouse.tools import RewardArgs, reward
from stillhouse.types import Message


@reward(precondition=True)
def answered(args: RewardArgs, messages: list[Message]) -> float:
    """The last word is the model's and holds a number. A precondition: 0 here is 0 for the whole trajectory."""
    return float(messages[-1]["role"] == "assistant" and _last_number(messages) is not None)


@reward
def right(args: RewardArgs, messages: list[Message]) -> float:
    """The last number of the answer is the expected one."""
    return float(_last_number(messages) == args.expected_answer)


@reward
def sparing(args: RewardArgs, messages: list[Message]) -> float:
    """No call of a tool is repeated word for word."""
    calls = [call["function"]["arguments"] for message in messages for call in message.get("tool_calls") or ()]
    return len(set(calls)) / len(calls) if calls else 1.0


def _last_number(messages: list[Message]) -> str | None:
    numbers = re.findall(r"-?\d+", str(messages[-1].get("content") or ""))
    return numbers[-1] if numbers else None
