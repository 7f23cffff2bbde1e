"""What is packed of odd answers, compared with digests of what the first version packed."""

import math
import random
import zlib
from base64 import b64decode
from hashlib import sha256
from typing import Any, Final

import numpy as np
import pytest

from stillhouse.inference.top_tokens import TopTokens, read_top_tokens

NUM_ANSWERS: Final = 400
WORDS: Final = (
    " the",
    "a",
    "Grün",
    "\n",
    "你",
    "\ufffd",
    "x\ufffd",
    "",
    "\ud800",
    "token_id:",
    "token_id:x",
    "<|eot|>",
)
PARTS: Final[tuple[Any, ...]] = ([0xC3], [0xBC], [0xE4, 0xBD], [], [300], ["a"], [True, 65], "ab", 7, {})
ODD_LOGPROBS: Final = (None, "-1", math.nan, -math.inf, 1e-9, 0, -3, -9999.0)


class Answers:
    """Random `logprobs` of choices; `odd` is the share of entries that no endpoint should write."""

    def __init__(self, seed: int, spelt: str, odd: float) -> None:
        self._rng = random.Random(seed)
        self._spelt = spelt
        self._odd = odd

    def answer(self) -> tuple[Any, int]:
        """Return an answer, and how many of its most probable tokens to read."""
        num_tokens, num_top = 1 + self._below(12), 1 + self._below(6)
        content: list[Any] = [self._entry(can_be_odd=False) for _ in range(num_tokens)]
        for entry in content:
            count = num_top + (self._below(3) - 1 if self._rng.random() < self._odd else 0)
            best: list[Any] = [self._entry() for _ in range(count)]
            if self._rng.random() < 0.8:
                best.sort(key=lambda other: -_number(other["logprob"]))
            if self._rng.random() < self._odd / 4:
                best.append(None)
            entry["top_logprobs"] = best
        return {"content": content}, 1 + self._below(8)

    def _entry(self, *, can_be_odd: bool = True) -> dict[str, Any]:
        word = WORDS[self._below(len(WORDS))]
        token: Any = word if self._spelt != "ids" else f"token_id:{self._below(9)}"
        written: Any = list(word.encode(errors="replace")) if self._rng.random() < 0.5 else None
        # Ties are frequent.
        logprob: Any = -self._below(16) / 2 if self._rng.random() < 0.5 else -9.0 * self._rng.random()
        if can_be_odd and self._rng.random() < self._odd:
            token = (None, 5, "token_id:3", word)[self._below(4)]
            written = PARTS[self._below(len(PARTS))]
            logprob = ODD_LOGPROBS[self._below(len(ODD_LOGPROBS))]
        elif self._spelt == "bytes":
            written = list(word.encode(errors="replace"))
        return {"token": token, "logprob": logprob, "bytes": written}

    def _below(self, count: int) -> int:
        return int(self._rng.random() * count)


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and not math.isnan(value) else -50.0


def packed(logprobs: Any, top_k: int) -> bytes:
    top = read_top_tokens(logprobs, top_k)
    return b"" if top is None else zlib.decompress(b64decode(top.pack()))


@pytest.mark.parametrize(
    ("seed", "spelt", "odd", "digest"),
    [
        (0, "bytes", 0.0, "748c677bc4627247"),
        (1, "texts", 0.0, "982ac55a74e2d18f"),
        (2, "ids", 0.0, "03c8976d5c939f0b"),
        (3, "bytes", 0.1, "6bd364363313b280"),
        (4, "texts", 0.1, "af573fc7b921e1e8"),
        (5, "ids", 0.1, "db3d3125fef660fd"),
        (6, "ids", 0.02, "24d2b75684d0f3c5"),
    ],
)
def test_every_answer_is_packed_to_the_bytes_of_the_first_version(
    seed: int, spelt: str, odd: float, digest: str
) -> None:
    answers = Answers(seed, spelt, odd)
    seen = sha256()
    for content in (packed(*answers.answer()) for _ in range(NUM_ANSWERS)):
        seen.update(len(content).to_bytes(4) + content)
    assert seen.hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("pack", "tokens", "spellings"),
    [
        (
            "eJxjZmBgYAZiVgYIYARiJiAW9J68D4YZoGpYoPIwNhMSe9aWTfvkDyGTmkdAkBUoywTUxcjgXnR4T55CZnGJgkliEgDgPBgM",
            [0, 1, 2],
            ["Grün".encode(), b" ist", b" 4", b"a", b"b"],
        ),
        ("eJxjYmBgYALi/0DACqTZgFjQe/I+EAbxM6FiWUA8a8umfSDcc7DnIABsyxBa", [5, 6], None),
    ],
)
def test_packs_of_the_first_version_are_read(pack: str, tokens: list[int], spellings: list[bytes] | None) -> None:
    top = TopTokens.of_bytes(b64decode(pack))
    assert (top.tokens_N.tolist(), top.spellings) == (tokens, spellings)
    assert top.logprobs_N == pytest.approx(np.log([0.75] * len(tokens)))
    assert top.top.ids_NK[:, 0].tolist() == tokens
