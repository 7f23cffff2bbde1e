"""The script of a described service: every answer is a function of the request, so a swapped one is seen.

A prompt names its case, as `[case-000123]`, and the answer repeats it. Where the request offers tools they are
called in turn for some turns, with the case and the turn as its arguments. Latency and faults are drawn from the
request's digest and the number of the attempt: the same seed gives the same weather, in whatever order requests come.
"""

import hashlib
import math
import re
from dataclasses import replace
from statistics import NormalDist
from typing import Any, Final, Literal

import orjson
from pydantic import Field

from stillhouse.testing import completion
from stillhouse.types import FrozenModel
from tests.provider.headers import RetryAfter
from tests.provider.limits import Size, Step
from tests.provider.logprobs import MAX_TOP_LOGPROBS, token_logprobs, words_of
from tests.provider.reply import ReceivedRequest, Reply, error

FaultClass = Literal["500", "reset", "cut", "silent", "error_body", "rate_body", "null_choices", "empty"]
CASE: Final = re.compile(rb"\[case-[\w-]+\]")
_MAX_TOKENS: Final = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
_NORMAL: Final = NormalDist()
_FILLER: Final = "lorem ipsum dolor sit amet consectetur adipiscing elit "
_CHARACTERS_PER_TOKEN: Final = 4
_SILENT_S: Final = 60.0
"""For how long the fault `silent` says nothing before it closes the connection."""


class Service(FrozenModel):
    """A provider, described."""

    latency_s: float = Field(default=0.2, ge=0)
    """Median time of an answer."""
    latency_sigma: float = Field(default=0.0, ge=0)
    """Of the logarithm of latency, which is normal; 0 gives the median always."""
    steps: tuple[Step, ...] = ()
    """Limits and from when on they hold."""
    retry_after: RetryAfter = None
    has_headers: bool = False
    """True if every answer carries rate-limit headers, in OpenAI's form."""
    say_why: bool = True
    """True if a 429 names the limit in its body."""
    faults: dict[FaultClass, float] = {}
    """Shares of the answers that go wrong."""
    completion_tokens: int = Field(default=20, ge=1)
    long_from: int | None = Field(default=None, ge=0)
    """Requests served before answers take ten times the tokens; None keeps them short."""
    tool_turns: int = Field(default=0, ge=0)
    """Turns that call a tool before the answer, where the request offers one."""
    seed: int = 0


class Answers:
    """A script (`Script`) that answers as the service is described."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._filler = _FILLER * (service.completion_tokens * _CHARACTERS_PER_TOKEN * 10 // len(_FILLER) + 1)

    def __call__(self, request: ReceivedRequest) -> Reply:
        service = self._service
        if (asked := request.body.get("top_logprobs") or 0) > MAX_TOP_LOGPROBS:
            said = f"Invalid 'top_logprobs': {asked} is more than {MAX_TOP_LOGPROBS}"
            return error(400, said, code="integer_above_max_value", kind="invalid_request_error")
        latency_u, fault_u = self._draw(request)
        delay_s = latency_s(service, latency_u)
        if (fault := self._fault(fault_u)) is not None:
            return self._faulty(fault, request, delay_s)
        return self._good(request, delay_s)

    def _draw(self, request: ReceivedRequest) -> tuple[float, float]:
        seed = f"{self._service.seed}/{request.digest}/{request.attempt}".encode()
        bits = hashlib.blake2b(seed, digest_size=16).digest()
        return tuple((int.from_bytes(part) + 0.5) / 2**64 for part in (bits[:8], bits[8:]))  # type: ignore[return-value]

    def _fault(self, drawn: float) -> FaultClass | None:
        for fault, share in self._service.faults.items():
            drawn -= share
            if drawn < 0:
                return fault
        return None

    def _good(self, request: ReceivedRequest, delay_s: float) -> Reply:
        service = self._service
        num_tokens = service.completion_tokens
        if service.long_from is not None and request.index >= service.long_from:
            num_tokens *= 10
        case = case_of(request.raw)
        if service.tool_turns and (call := _tool_call(request.body, case, service.tool_turns)) is not None:
            answer = completion(tool_calls=[call])
            said_characters = len(call[1])
        else:
            content = f"Answer to {case}: "
            content += self._filler[: max(0, num_tokens * _CHARACTERS_PER_TOKEN - len(content))]
            answer = completion(content)
            said_characters = len(content)
        if request.body.get("logprobs"):
            # As at OpenAI, tool calls have none.
            said = answer["choices"][0]["message"]["content"]
            top_k = request.body.get("top_logprobs") or 0
            answer["choices"][0]["logprobs"] = said and token_logprobs(words_of(said), top_k)
        num_choices = request.body.get("n") or 1
        answer["choices"] *= num_choices
        prompt_tokens = len(request.raw) // _CHARACTERS_PER_TOKEN
        completion_tokens = (said_characters // _CHARACTERS_PER_TOKEN + 1) * num_choices
        answer["usage"] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }
        return Reply(orjson.dumps(answer), delay_s=delay_s, tokens=prompt_tokens + completion_tokens)

    def _faulty(self, fault: FaultClass, request: ReceivedRequest, delay_s: float) -> Reply:
        good = self._good(request, delay_s)
        match fault:
            case "500":
                return replace(error(500, "Overloaded"), delay_s=delay_s)
            case "reset" | "cut":
                return replace(good, fault=fault)
            case "silent":
                return replace(good, delay_s=_SILENT_S, fault="close")
            case "error_body" | "rate_body":
                code = 502 if fault == "error_body" else 429
                return Reply({"error": {"message": "Provider returned error", "code": code}}, sampled=False)
        answer = orjson.loads(good.body)  # type: ignore[arg-type]
        if fault == "empty":
            answer["choices"][0]["message"]["content"] = ""
        else:
            answer["choices"] = None
        return replace(good, body=answer)


def _tool_call(body: dict[str, Any], case: str, num_turns: int) -> tuple[str, str] | None:
    """Name and arguments of the call of this turn; None when it is time to answer."""
    turn = sum(message.get("role") == "assistant" for message in body["messages"])
    if turn >= num_turns or not body.get("tools") or body.get("tool_choice") == "none":
        return None
    offered = body["tools"]
    return offered[turn % len(offered)]["function"]["name"], orjson.dumps({"case": case, "turn": turn}).decode()


def case_of(raw: bytes) -> str:
    """Return the case that a prompt names, or a digest of the prompt that names none."""
    match = CASE.search(raw)
    return match[0].decode() if match else f"[{hashlib.sha256(raw).hexdigest()[:12]}]"


def size_of(raw: bytes, tokens: int) -> Size:
    """Return what a request weighs whose prompt and completion are of so many tokens."""
    allowed = _MAX_TOKENS.search(raw)
    return Size(tokens, len(raw) // _CHARACTERS_PER_TOKEN + int(allowed[1]) if allowed else tokens)


def latency_s(service: Service, drawn: float) -> float:
    """Return the quantile `drawn` of the latency."""
    if service.latency_sigma == 0:
        return service.latency_s
    return service.latency_s * math.exp(service.latency_sigma * _NORMAL.inv_cdf(drawn))
