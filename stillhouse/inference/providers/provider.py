"""`Provider`: what is known of a seller or server of models; itself the one of which nothing is known."""

from typing import ClassVar

from stillhouse.inference.sampling import Sampling
from stillhouse.types import JsonObject


class Provider:
    """A seller or server that speaks OpenAI's chat completions; others say where they differ."""

    hosts: ClassVar[tuple[str, ...]] = ()
    """Domains of its endpoints, their subdomains included."""
    token_limit: ClassVar[str] = "max_tokens"
    """Key of the most tokens of a completion."""

    def is_at(self, host: str) -> bool:
        return any(f".{host}".endswith(f".{known}") for known in self.hosts)

    def chat_keys(self, sampling: Sampling) -> JsonObject:
        """Return the keys of a chat completion that ask for this sampling; those that are not needed are left out."""
        keys: JsonObject = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self.token_limit: sampling.max_tokens,
        }
        if sampling.seed is not None:
            keys["seed"] = sampling.seed
        if sampling.reasoning_effort is not None:
            keys |= self.effort_keys(sampling.reasoning_effort)
        if sampling.response_schema is not None:
            keys |= self.schema_keys(sampling.response_schema)
        if sampling.record_tokens:
            keys |= {"logprobs": True, **self.token_id_keys()}
        if sampling.record_top_k is not None:
            keys |= {"logprobs": True, "top_logprobs": sampling.record_top_k, **self.top_token_keys()}
        return keys

    def effort_keys(self, effort: str) -> JsonObject:
        return {"reasoning_effort": effort}

    def schema_keys(self, schema: JsonObject) -> JsonObject:
        described = {"name": "answer", "strict": True, "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": described}}

    def token_id_keys(self) -> JsonObject:
        """Return the keys that ask for the ids of prompt and completion: vLLM's."""
        return {"return_token_ids": True}

    def top_token_keys(self) -> JsonObject:
        """Return the keys that ask for the most probable tokens as ids, since texts of parts of characters are all
        alike: vLLM's.
        """
        return {"return_tokens_as_token_ids": True}
