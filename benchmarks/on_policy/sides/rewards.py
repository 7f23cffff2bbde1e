"""The reward of both sides where rewards alone teach: the share of even digits in a completion."""

from stillhouse.tools.rewards import RewardArgs, reward
from stillhouse.types import Message


def share_of_even_digits(text: str) -> float:
    """0 for a text without digits."""
    digits = [character for character in text if character.isdecimal()]
    return sum(int(digit) % 2 == 0 for digit in digits) / max(1, len(digits))


@reward
def even_digits(args: RewardArgs, messages: list[Message]) -> float:
    """Of the completion."""
    return share_of_even_digits(str(messages[-1]["content"]))
