"""`Provider`: what is known of a seller or server of models; itself the one of which nothing is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.rate_limit.headers import LimitScope, RateLimits
from stillhouse.inference.sampling import Sampling
from stillhouse.inference.schema_forms import SchemaForm
from stillhouse.sellers import Seller
from stillhouse.types import JsonObject

_NOBODY: Final = Seller("", ())
OVERFLOW: Final = "overflow"
Meaning = FailureKind | LimitScope | Literal["overflow"]
"""What an error says; `OVERFLOW` that a conversation is longer than the model's context."""


@dataclass(frozen=True)
class Provider:
    """A seller or server that speaks OpenAI's chat completions.

    How requests are written depends on the endpoint. The codes and wordings of all providers are read together, as
    gateways hand on what their sellers say.
    """

    seller: Seller = _NOBODY
    token_limit: str = "max_tokens"
    """Key of the most tokens of a completion."""
    seed: str = "seed"
    has_token_ids: bool = False
    """Whether ids of tokens are asked for in vLLM's keys; texts of parts of characters are all alike."""
    limits_requests_by_day: bool = False
    """Whether the limit of requests in its headers is for a day, which is no rate."""
    answer_form: SchemaForm | None = None
    """Form that schemas of answers must have; None sends them as they are."""
    codes: Mapping[Meaning, str] = field(default_factory=dict)
    """Codes, types and statuses of errors, by what they mean."""
    wordings: Mapping[Meaning, str] = field(default_factory=dict)
    """Patterns of messages in lower case, for errors whose code does not tell."""

    def chat_keys(self, sampling: Sampling) -> JsonObject:
        """Return the keys of a chat completion that ask for this sampling; those that are not needed are left out."""
        told: JsonObject = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self.token_limit: sampling.max_tokens,
            self.seed: sampling.seed,
        }
        keys = {key: value for key, value in told.items() if value is not None}
        if sampling.reasoning_effort is not None:
            keys |= self.effort_keys(sampling.reasoning_effort)
        if sampling.response_schema is not None:
            keys |= self.schema_keys(sampling.response_schema)
        if sampling.record_tokens:
            keys |= {"logprobs": True} | ({"return_token_ids": True} if self.has_token_ids else {})
        if sampling.record_top_k is not None:
            keys |= {"logprobs": True, "top_logprobs": sampling.record_top_k, **self.top_token_keys()}
        return keys

    def effort_keys(self, effort: str) -> JsonObject:
        return {"reasoning_effort": effort}

    def schema_keys(self, schema: JsonObject) -> JsonObject:
        described = {"name": "answer", "strict": True, "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": described}}

    def top_token_keys(self) -> JsonObject:
        """Return the keys that ask for the most probable tokens as ids."""
        return {"return_tokens_as_token_ids": True} if self.has_token_ids else {}

    def limits(self, stated: RateLimits | None) -> RateLimits | None:
        """Return the limits of a minute among those that the headers of an answer state."""
        return replace(stated, requests=None) if stated is not None and self.limits_requests_by_day else stated
