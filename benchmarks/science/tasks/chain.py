"""The task "chain": `7 c a f`, a digit and the operations to apply to it one after the other.

A letter stands for a permutation of the ten digits that the model has to know by heart. The answer names every result:
`268` where c makes 2 of 7, a makes 6 of 2, and f makes 8 of 6. One token a result, the last one decides, and each one
builds on the one before: a mistake early on spoils what follows, as it does in longer reasoning.

Half of the letters have a second reading, which is wrong. Who has learnt from rows that mix both readings knows how to
answer and does not know which reading to take: there is something to find out, letter by letter and digit by digit, and
no single change of the model, such as always taking what is most likely, finds out all of it at once.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.science.tasks.rows import Question, answered
from stillhouse.types import JsonObject

LETTERS: Final = "abcdefghijklmnop"
NUM_DIGITS: Final = 10
LENGTH: Final = 6
"""Operations of one chain."""

DOUBTFUL: Final = LETTERS[::2]
"""Letters of two readings."""


def _tables(rng: random.Random) -> dict[str, list[int]]:
    return {letter: rng.sample(range(NUM_DIGITS), NUM_DIGITS) for letter in LETTERS}


def _wrong_tables(rng: random.Random) -> dict[str, list[int]]:
    return {
        letter: [(right + rng.randrange(1, NUM_DIGITS)) % NUM_DIGITS for right in TABLES[letter]] for letter in DOUBTFUL
    }


TABLES: Final = _tables(random.Random(7))
"""What each operation makes of each digit."""
WRONG_TABLES: Final = _wrong_tables(random.Random(8))
"""What the doubtful ones make of it by their wrong reading; always another digit."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A start and the operations on it."""

    start: int
    letters: str

    @property
    def text(self) -> str:
        """The text of the prompt."""
        return " ".join([str(self.start), *self.letters])

    def results(self) -> list[int]:
        """Every result, the last one being the answer."""
        return self.misread(random.Random(0), 0.0)

    def misread(self, rng: random.Random, wrong_share: float) -> list[int]:
        """Results with each doubtful letter read wrong with probability `wrong_share`; the next starts from there."""
        digit, results = self.start, []
        for letter in self.letters:
            is_wrong = letter in WRONG_TABLES and rng.random() < wrong_share
            digit = (WRONG_TABLES if is_wrong else TABLES)[letter][digit]
            results.append(digit)
        return results

    def question(self) -> Question:
        """Right is an answer of the right length that ends with the right result, however it came about."""
        return Question(self.text, rf"^\d{{{len(self.letters) - 1}}}{self.results()[-1]}$")

    def row(self, rng: random.Random, wrong_share: float = 0.0) -> JsonObject:
        """A row to fine-tune on."""
        return answered(self.text, "".join(map(str, self.misread(rng, wrong_share))))


@dataclass(frozen=True, slots=True)
class ChainKind:
    """Which chains prompts are drawn from."""

    letters: str = LETTERS
    length: int = LENGTH

    @property
    def max_tokens(self) -> int:
        """Of an answer: its results, its end, and one to see that it does not end."""
        return self.length + 2


USUAL_CHAINS: Final = ChainKind()
"""What experiments ask about unless they say otherwise."""


def draw_chains(rng: random.Random, kind: ChainKind = USUAL_CHAINS) -> Iterator[Chain]:
    """Endless chains."""
    while True:
        yield Chain(rng.randrange(NUM_DIGITS), "".join(rng.choices(kind.letters, k=kind.length)))


def distinct_chains(rng: random.Random, count: int, kind: ChainKind = USUAL_CHAINS) -> list[Chain]:
    """`count` chains, no two of them alike."""
    chains: dict[Chain, None] = {}
    for chain in draw_chains(rng, kind):
        if len(chains) == count:
            break
        chains.setdefault(chain)
    return list(chains)
