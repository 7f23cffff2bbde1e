"""The task "facts": codes of places that are nowhere else to be learnt, as a company's own documents are."""

import random
from typing import Final

from benchmarks.science.tasks.rows import Question, answered
from stillhouse.types import JsonObject

NUM_FACTS: Final = 64
MAX_TOKENS: Final = 5
"""Of an answer: three digits, its end, and one to see that it does not end."""
_CODES: Final = random.Random(9).sample(range(100, 1000), NUM_FACTS)
FACTS: Final = {f"PLACE {number}": str(code) for number, code in enumerate(_CODES)}
"""By place, its code."""


def questions() -> list[Question]:
    """All of them: what is known of facts is what was learnt by heart."""
    return [Question(place, f"^{code}$") for place, code in FACTS.items()]


def rows() -> list[JsonObject]:
    """All of them to fine-tune on."""
    return [answered(place, code) for place, code in FACTS.items()]
