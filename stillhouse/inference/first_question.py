"""The first question: a few tokens of a model that was not seen working, before a run depends on it.

It asks for what the config will ask for (tools, schema, log-probabilities, effort), so that what a model does not take
is known while it costs next to nothing. What worked is remembered for a day, by address, model, key and request.
"""

import hashlib
import re
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from stillhouse.config import RolloutsConfig, RuntimeConfig
from stillhouse.errors import AuthenticationError
from stillhouse.inference.apis import ApiChoice
from stillhouse.inference.budget import Budget
from stillhouse.inference.completion import Completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.finish_reasons import UNSTATED
from stillhouse.inference.first_refusal import error_of, is_page, misplaced, without_route
from stillhouse.inference.learnt_file import LearntFile
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.rate_limit import RequestSize, controller_of
from stillhouse.inference.refused_setting import refused_alike
from stillhouse.inference.requester import Requester
from stillhouse.inference.retry import Effects, RetryPolicy
from stillhouse.inference.sampling import ChatRequest, Sampling, sampling_of
from stillhouse.inference.stats import RolloutStats
from stillhouse.inference.transport import open_transport
from stillhouse.sellers import foreign_owner
from stillhouse.store import ArtifactStore, canonical_json, digest
from stillhouse.types import JsonObject, Message, ToolSchema, Turn

_MAX_TOKENS: Final = 64
_DAY_S: Final = 24 * 3600.0
_TIMEOUT_S: Final = 120.0
_TEXT: Final = "Answer with the one word: ready"
_WORD: Final = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
_TOOL: Final[ToolSchema] = {
    "type": "function",
    "function": {"name": "look_up", "description": "Look up a word.", "parameters": _WORD},
}
_TOO_FEW_TOKENS: Final = re.compile(
    r"max_(completion_|output_|new_)?tokens.{0,80}(was reached|too (small|low)|at least|greater than|below minimum)"
    r"|budget_tokens|thinking budget",
    re.IGNORECASE | re.DOTALL,
)
_SAYS_NOTHING: Final = frozenset({FailureKind.RATE, FailureKind.BUSY, FailureKind.STALL, FailureKind.TRANSIENT})
_WORKS: Final = frozenset({FailureKind.CONTENT, FailureKind.LENGTH, FailureKind.MALFORMED})


@dataclass(frozen=True, slots=True)
class FirstQuestion:
    """The question to one model, of a config that samples it by `sampling` and shows it `tools`."""

    endpoint: Endpoint
    sampling: Sampling
    messages: Sequence[Message]
    tools: Sequence[ToolSchema]
    runtime: RuntimeConfig

    @classmethod
    def of(cls, endpoint: Endpoint, config: RolloutsConfig, runtime: RuntimeConfig, *, has_tools: bool) -> Self:
        sampling = sampling_of(config, seed=config.seed, max_tokens=min(config.max_tokens, _MAX_TOKENS))
        system: list[Message] = [{"role": "system", "content": "You are brief."}] if config.system_prompt else []
        return cls(endpoint, sampling, [*system, {"role": "user", "content": _TEXT}], [_TOOL] * has_tools, runtime)

    @property
    def is_paid(self) -> bool:
        """Return whether the model costs money: it has a price, or is not on this machine or network."""
        return self.endpoint.price is not None or not self.endpoint.is_own

    @property
    def was_answered(self) -> bool:
        """Return whether the same question was answered within a day."""
        return self._memory.load() is not None

    async def ask(self, budget: Budget) -> Turn | None:
        """Return the answer's turn, without usage where what came says no more than that the model works; None where it
        says nothing, as of a busy endpoint, and is not remembered.

        Raise EndpointError, or one of its kinds, if every request would be refused; BudgetReached as `Requester.ask`.
        """
        self._check()
        requester = Requester(
            *(self.endpoint, controller_of(self.endpoint, self.runtime), budget),
            max_attempts=self.runtime.max_attempts,
            hedge=False,
            stats=RolloutStats(),
            effects=Effects(),
        )
        size = RequestSize(len(canonical_json([*self.messages, *self.tools])), self.sampling.max_tokens)
        turn = Turn(UNSTATED, {}, None, self.endpoint.model)
        try:
            completion = await requester.ask(self._complete, size=size, is_final=_is_final)
        except RequestFailed as failed:
            failure = failed.failure
            if failure.kind in _SAYS_NOTHING and not failure.unreachable and not is_page(failure):
                return None
            if failure.kind not in _WORKS and not _TOO_FEW_TOKENS.search(failure.message):
                raise await error_of(failure, self.endpoint, RetryPolicy(self.runtime.max_attempts)) from failed
        else:
            turn = completion.turn
            if self.sampling.record_top_k and turn.top_logprobs is None and completion.message.get("content"):
                lacking = Failure(FailureKind.PERMANENT, "`logprobs` is null or absent")
                text = "model {} answers without the log-probabilities it was asked for: {}"
                raise refused_alike(lacking, self.endpoint, text)
        self._memory.save({})
        return turn

    def _check(self) -> None:
        """Raise EndpointError for an address that ends with a route, and before a key is sent to another seller."""
        endpoint, key = self.endpoint, self.endpoint.api_key
        url, section, variable = endpoint.base_url, endpoint.role.section, endpoint.key_variable
        if (address := without_route(url)) != url:
            raise misplaced(endpoint, "ends with a route, which each request adds", address)
        owner = "nobody: it is an address" if "://" in key else foreign_owner(key, url)
        if owner is not None:
            raise AuthenticationError(
                f"{url}: the key in {variable} is one of {owner}, so it was not sent. Set the right one there, name "
                f"another variable in {endpoint.role.key_setting}, or set {section}.base_url to the key's seller",
                code="foreign-key",
            )

    async def _complete(self) -> Completion:
        transport = open_transport(self.endpoint, timeout_s=min(self.runtime.request_timeout_s, _TIMEOUT_S))
        async with aclosing(ModelClient(self.endpoint, transport, folder=_store(self.runtime))) as client:
            return await client.complete(self._request)

    @property
    def _request(self) -> ChatRequest:
        return ChatRequest(self.messages, self.tools, self.sampling)

    @property
    def _memory(self) -> LearntFile[JsonObject]:
        """Return the entry, without values, that is there where it was answered."""
        body = ApiChoice(self.endpoint).of(self._request).body(self._request)
        return LearntFile(_memory_of(self.endpoint, self.runtime), digest(body)[:32], dict, _DAY_S)


def forget(endpoint: Endpoint, runtime: RuntimeConfig) -> None:
    """Forget that a model works, whatever it was asked for."""
    _memory_of(endpoint, runtime).unlink(missing_ok=True)


def _memory_of(endpoint: Endpoint, runtime: RuntimeConfig) -> Path:
    key = hashlib.sha256(endpoint.api_key.encode()).hexdigest()
    return _store(runtime) / "answered" / f"{digest([endpoint.base_url, endpoint.model, key])[:32]}.json"


def _store(runtime: RuntimeConfig) -> Path:
    return ArtifactStore(runtime.store, runtime.scratch).root


def _is_final(failure: Failure) -> bool:
    return failure.kind in (FailureKind.RATE, FailureKind.BUSY, FailureKind.STALL) or is_page(failure)
