"""What is read of servers' scores, compared with digests of what was read one entry at a time."""

import math
import random
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import numpy as np
import pytest

from stillhouse.inference.scoring.api import WrongAnswer
from stillhouse.inference.scoring.completions_api import EchoApi, VllmApi
from stillhouse.inference.scoring.sglang_api import SglangApi

NUM_ANSWERS: Final = 200
TOP_K: Final = 4


@dataclass
class Tokens:
    token_ids: list[int]
    loss_mask: list[bool]


def position(rng: random.Random) -> list[tuple[int, Any]]:
    """Return five ids and log-probabilities, of which the first is the sequence's token; ties are frequent."""
    ids: dict[int, None] = {}
    while len(ids) < TOP_K + 1:
        ids[int(rng.random() * 40)] = None
    ties = [-int(rng.random() * 6) / 2 - 0.5 for _ in ids]
    first, *others = [tie if rng.random() < 0.5 else -9.0 * rng.random() for tie in ties]
    odd: tuple[Any, ...] = (-9999.0, -math.inf, 0, -3, 1e-4, 1e-9, -3.4028234663852886e38)
    others = [odd[int(rng.random() * len(odd))] if rng.random() < 0.1 else other for other in others]
    return list(zip(ids, [first, *others], strict=True))


def example(seed: int) -> tuple[Tokens, list[list[tuple[int, Any]]]]:
    rng = random.Random(seed)
    positions = [position(rng) for _ in range(1 + int(rng.random() * 9))]
    mask = [rng.random() < 0.7 for _ in positions]
    mask[int(rng.random() * len(mask))] = True
    return Tokens([7, *(best[0][0] for best in positions)], [False, *mask]), positions


def ranked(best: list[tuple[int, Any]], seed: int) -> list[tuple[int, Any]]:
    """Return the best four in the order of a server, and the token itself before them where it is none."""
    others = sorted(best, key=lambda pair: -pair[1])[:TOP_K] if seed % 3 else best[:TOP_K]
    return others if best[0] in others else [best[0], *others]


def vllm(tokens: Tokens, positions: list[list[tuple[int, Any]]], seed: int) -> Any:
    entries = [
        {str(token): {"logprob": logprob, "rank": 1, "decoded_token": None} for token, logprob in ranked(best, seed)}
        for best in positions
    ]
    return {"choices": [{"index": 0, "prompt_logprobs": [None, *entries]}]}


def sglang(tokens: Tokens, positions: list[list[tuple[int, Any]]], seed: int) -> Any:
    start = tokens.loss_mask.index(True) - 1
    own = [[None, 7, None], *([best[0][1], best[0][0], None] for best in positions)]
    tops = [None, *([[logprob, token, None] for token, logprob in best[:TOP_K]] for best in positions)]
    meta = {"input_token_logprobs": own[start:], "input_top_logprobs": [None, *tops[start + 1 :]]}
    return [{"meta_info": meta}]


def echo(tokens: Tokens, positions: list[list[tuple[int, Any]]], seed: int) -> Any:
    texts = [f"token_id:{token}" for token in tokens.token_ids]
    listed = {"tokens": texts, "token_logprobs": [None, *(best[0][1] for best in positions)]}
    return {"choices": [{"index": 0, "logprobs": listed}]}


APIS: Final[dict[str, Any]] = {
    "vllm": (VllmApi("m", top_k=TOP_K), vllm),
    "sglang": (SglangApi(top_k=TOP_K), sglang),
    "echo": (EchoApi("m"), echo),
}


def digest(kind: str) -> str:
    api, answer = APIS[kind]
    digest = sha256()
    for seed in range(NUM_ANSWERS):
        tokens, positions = example(seed)
        [scores] = api.scores(answer(tokens, positions, seed), [tokens])
        digest.update(np.array(scores.logprobs, np.float64).tobytes())
        if scores.top is not None:
            for array in (scores.top.ids_NK, scores.top.logprobs_NK, scores.top.log_tail_N):
                digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize(
    ("kind", "expected"), [("vllm", "2e0811729ac4745c"), ("sglang", "f42b5ee1f48de210"), ("echo", "d4e3cb337991a9b0")]
)
def test_the_same_scores_are_read_as_by_one_entry_at_a_time(kind: str, expected: str) -> None:
    assert digest(kind) == expected


SEQUENCE: Final = Tokens([7, 5], [False, True])


@pytest.mark.parametrize(
    ("best", "message"),
    [
        ([[-0.5, 5, None], [-1.0, 1 << 31, None]], "no id"),
        ([[-0.5, 5, None], [-1.0, None, None]], "no id"),
        ([[-0.5, 5, None], [True, 6, None]], "token 6 is True"),
        ([[-0.5, 5, None], [math.nan, 6, None]], "token 6 is nan"),
        ([[-0.5, 5, None], [-(10**400), 6, None]], "token 6 is -1000"),
        ([[-0.5, 5, None], [0.1, 6, None]], "token 6 is 0.1"),
        ([], "0 to 0 most probable"),
    ],
)
def test_entries_that_are_no_scores_are_refused_by_name(best: list[Any], message: str) -> None:
    meta = {"input_token_logprobs": [[None, 7, None], [-0.5, 5, None]], "input_top_logprobs": [None, best]}
    with pytest.raises(WrongAnswer, match=message):
        SglangApi(top_k=2).scores([{"meta_info": meta}], [SEQUENCE])


@pytest.mark.parametrize(
    "entry", [{"5": {"logprob": -0.5}, "five": {"logprob": -1.0}}, {"5": {"logprob": -0.5}, "6": -1.0}]
)
def test_entries_by_something_else_than_an_id_are_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(WrongAnswer, match="by token id"):
        VllmApi("m", top_k=2).scores({"choices": [{"index": 0, "prompt_logprobs": [None, entry]}]}, [SEQUENCE])
