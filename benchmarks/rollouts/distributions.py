"""What the most probable tokens cost this process: `rollouts.record_top_k` by answer, a served teacher by token.

    python -m benchmarks.rollouts.acceptance --parts distributions

Claims
    loop      at most 10 ms of the event loop an answer of 1,000 tokens with the 20 most probable at each.
    teacher   at most 8 us a token to read a served teacher's 20 most probable out of the parsed answer.

Measured
    Seconds of CPU of one thread, so that others on the machine count little, with `rarely_collected` as in runs. `loop`
    is the event loop's thread of the real client against a provider in another process; the thread that reads has the
    rest. Beside each figure stands what orjson takes to parse the same bytes, below which nothing written in Python
    goes. Tokens are drawn by Zipf's law, as text repeats its own.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks.frame.rounds import Spread, spread
from benchmarks.rollouts.measure import Effort
from benchmarks.rollouts.process import running
from stillhouse.inference.apis.chat import ChatCompletions
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.sampling import ChatRequest, Sampling
from stillhouse.inference.scoring.completions_api import VllmApi
from stillhouse.inference.scoring.sglang_api import SglangApi
from stillhouse.inference.transport import HttpAnswer
from stillhouse.processes.gc_tuning import rarely_collected
from tests.provider.answers import Service

_TOP_K: Final = 20
_NUM_TOKENS: Final = 1000
_WORD_TOKENS: Final = 1.725
"""Of `Service`, which counts four characters a token, by token as its log-probabilities have them."""
_ANSWERS: Final = 20
_VOCABULARY: Final = 30_000
_WEIGHTS: Final = list(itertools.accumulate(1 / (rank + 10) for rank in range(_VOCABULARY)))


@dataclass(frozen=True)
class _Tokens:
    token_ids: list[int]
    loss_mask: list[bool]


def distributions(effort: Effort, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Milliseconds of the loop an answer, and microseconds a token of a teacher's answer."""
    lines, figures = [], {}
    with rarely_collected():
        loop = spread([_loop_ms() for _ in range(effort.rounds)])
        figures["loop_ms"] = asdict(loop)
        lines.append(f"distributions, loop: {loop} ms an answer (at most 10)")
        for name, body in _answers(random.Random(0)):
            content = orjson.dumps(body)
            floor = _taken(effort, 1e3, partial(orjson.loads, content))
            whole = _taken(effort, 1e3, partial(_read, content))
            figures[f"answer, {name}"] = {"whole_ms": asdict(whole), "orjson_ms": asdict(floor)}
            lines.append(
                f"distributions, answer with {name}: {whole} ms in the reading thread, of which orjson {floor} ms"
            )
        for name, api, answer, tokens in _teachers(random.Random(0)):
            content, unit = orjson.dumps(answer), 1e6 / _NUM_TOKENS
            floor = _taken(effort, unit, partial(orjson.loads, content))
            read = _taken(effort, unit, partial(api.scores, answer, [tokens]))
            figures[f"teacher, {name}"] = {"read_us": asdict(read), "orjson_us": asdict(floor)}
            lines.append(f"distributions, {name} teacher: {read} us a token (at most 8) after orjson's {floor} us")
    return lines, figures


def _taken(effort: Effort, unit: float, work: Callable[[], object]) -> Spread:
    """CPU of this thread, the least of a few repetitions in each round, in so many parts of a second."""
    return spread([unit * min(_cpu_s(work) for _ in range(5)) for _ in range(effort.rounds)])


def _cpu_s(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def _read(content: bytes) -> None:
    request = ChatRequest([], [], Sampling(1.0, 1.0, 8192, None, record_top_k=_TOP_K))
    completion = ChatCompletions(Endpoint("http://127.0.0.1/v1", "m", "m")).completion(
        HttpAnswer(content, {}, 1.0), request
    )
    assert completion.turn.top_logprobs


def _loop_ms() -> float:
    with running(Service(latency_s=0.0, completion_tokens=round(_NUM_TOKENS * _WORD_TOKENS))) as provider:
        return asyncio.run(_ask(provider.url)) / _ANSWERS * 1e3


async def _ask(url: str) -> float:
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=8192, seed=None, record_top_k=_TOP_K)
    endpoint = Endpoint(url, "m", "m")
    async with aclosing(ModelClient(endpoint, HttpClient(endpoint, timeout_s=60.0))) as client:

        async def ask(number: int) -> None:
            completion = await client.complete(ChatRequest([{"role": "user", "content": str(number)}], [], sampling))
            assert completion.turn.top_logprobs

        await ask(_ANSWERS)
        begun = time.thread_time()
        await asyncio.gather(*map(ask, range(_ANSWERS)))
        return time.thread_time() - begun


def _draw(rng: random.Random) -> list[tuple[int, float]]:
    """Distinct tokens with log-probabilities, best first."""
    tokens: dict[int, None] = {}
    while len(tokens) < _TOP_K:
        tokens |= dict.fromkeys(rng.choices(range(_VOCABULARY), cum_weights=_WEIGHTS, k=_TOP_K - len(tokens)))
    return list(zip(tokens, sorted((-abs(rng.gauss(6.0, 3.0)) for _ in tokens), reverse=True), strict=True))


def _answers(rng: random.Random) -> Iterator[tuple[str, Any]]:
    """Answers of a chat endpoint, by how they name tokens."""
    words = ["".join(rng.choices("abcdefgh ", k=rng.randint(1, 8))) for _ in range(_VOCABULARY)]
    for name, spell in (("bytes", words.__getitem__), ("ids", "token_id:{}".format)):
        entries = [
            [
                {"token": spell(token), "logprob": logprob, "bytes": list(spell(token).encode())}
                for token, logprob in _draw(rng)
            ]
            for _ in range(_NUM_TOKENS)
        ]
        content = [{**best[0], "top_logprobs": best} for best in entries]
        message = {"role": "assistant", "content": "hello"}
        yield name, {"choices": [{"message": message, "finish_reason": "stop", "logprobs": {"content": content}}]}


def _teachers(rng: random.Random) -> Iterator[tuple[str, Any, Any, _Tokens]]:
    """Answers of servers that score a sequence, with what reads them."""
    best = [_draw(rng) for _ in range(_NUM_TOKENS)]
    tokens = _Tokens([0, *(pairs[0][0] for pairs in best)], [False, *[True] * _NUM_TOKENS])
    entries = [
        {str(token): {"logprob": logprob, "rank": 1, "decoded_token": "word"} for token, logprob in pairs}
        for pairs in best
    ]
    yield "vllm", VllmApi("m", top_k=_TOP_K), {"choices": [{"index": 0, "prompt_logprobs": [None, *entries]}]}, tokens
    own = [[None, 0, None], *([pairs[0][1], pairs[0][0], None] for pairs in best)]
    tops = [None, *([[logprob, token, None] for token, logprob in pairs] for pairs in best)]
    meta = {"input_token_logprobs": own, "input_top_logprobs": tops}
    yield "sglang", SglangApi(top_k=_TOP_K), [{"meta_info": meta}], tokens
