"""Vectors of texts: each is a function of the text's words, so texts that share words lie close together."""

import hashlib
import re
from typing import Any, Final

import numpy as np

NUM_DIMENSIONS: Final = 32
_CHARACTERS_PER_TOKEN: Final = 4


def embeddings(body: dict[str, Any]) -> dict[str, Any]:
    """The answer to the body of a request to `/embeddings`, in OpenAI's form."""
    given = body["input"]
    texts = [given] if isinstance(given, str) else given
    num_tokens = sum(len(text) // _CHARACTERS_PER_TOKEN + 1 for text in texts)
    return {
        "object": "list",
        "model": "simulated-1",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector_of(text)} for index, text in enumerate(texts)
        ],
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


def vector_of(text: str) -> list[float]:
    """The sum of a normal vector for each word; of no particular length."""
    words = re.findall(r"\w+", text.lower()) or [""]
    return np.sum([_word_vector(word) for word in words], axis=0).round(6).tolist()


def _word_vector(word: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
    seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
    return np.random.default_rng(seed).standard_normal(NUM_DIMENSIONS)
