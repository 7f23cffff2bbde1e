"""Identities: of a rollout, of a request within it, and of the seed it is sampled with.

A key is a digest of content alone. Its form is a promise: answers already paid for are found by it, so a new field may
enter only if it differs from its default and changes the request.

Left out are how much is sampled (`num_samples`, `max_prompts`, `trajectories_file`: more samples owe only the missing
ones), and the rollout's own cap (`max_rollout_tokens`): a rollout that a cap
has ended goes on from where it was once the cap is raised.
"""

import hashlib
from collections.abc import Sequence

from stillhouse.config import RolloutsConfig
from stillhouse.store import canonical_json, digest
from stillhouse.types import JsonObject, Message, ToolSchema


class KeyForm:
    """Keys of rollouts that share config, endpoint and tools, whose canonical JSON is made once."""

    def __init__(self, identity: str, config: RolloutsConfig, schemas: Sequence[ToolSchema]) -> None:
        shared = _shared(identity, config, schemas)
        self._before = _members({key: value for key, value in shared.items() if key < "prompt_id"})
        self._between = _members({key: value for key, value in shared.items() if "prompt_id" < key < "sample_index"})
        self._after = _members({key: value for key, value in shared.items() if key > "sample_index"})

    def key(self, prompt_id: str, sample_index: int, metadata: JsonObject | None = None) -> str:
        """Return the identity of one rollout, in hex.

        `metadata` is the prompt's if a tool gets it, else None.
        """
        prompt: JsonObject = {"prompt_id": prompt_id}
        if metadata is not None:
            prompt["prompt_metadata"] = digest(metadata)
        # The canonical JSON of one object with sorted keys, put together from its members.
        parts = (self._before, _members(prompt), self._between, b'"sample_index":%d' % sample_index, self._after)
        return hashlib.sha256(b"{" + b",".join(part for part in parts if part) + b"}").hexdigest()


class RequestDigest:
    """The identity of a request within its rollout: the digest of the list of its messages, computed incrementally.

    Everything else in a request is in the rollout's key.
    """

    def __init__(self) -> None:
        self.num_characters = 0
        """Length of the messages as JSON in UTF-8."""
        self._hasher = hashlib.sha256(b"[")

    def add(self, message: Message) -> None:
        encoded = canonical_json(message)
        self._hasher.update(b"," + encoded if self.num_characters else encoded)
        self.num_characters += len(encoded)

    def of_request(self, max_tokens: int | None = None) -> str:
        """Return the digest of a request with the messages so far, in hex.

        It depends on `max_tokens` where that differs from the config's: a completion cut earlier is another one.
        """
        hasher = self._hasher.copy()
        hasher.update(b"]" if max_tokens is None else b",%d]" % max_tokens)
        return hasher.hexdigest()


def request_seed(seed: int | None, rollout_key: str, turn: int) -> int | None:
    """Return the seed of one request, in [0, 2**31), its own for each rollout and turn; None where none is wanted."""
    if seed is None:
        return None
    return int(digest([seed, rollout_key, turn])[:16], 16) % 2**31


def _shared(identity: str, config: RolloutsConfig, schemas: Sequence[ToolSchema]) -> JsonObject:
    body: JsonObject = {
        "model": identity,
        "system_prompt": config.system_prompt,
        "max_tokens": config.max_tokens,
        "max_turns": config.max_turns,
        "timeout_s": None if config.timeout_s is None else float(config.timeout_s),
        "seed": config.seed,
        "tools": list(schemas),
    }
    if config.temperature is not None:
        body["temperature"] = float(config.temperature)
    if (top_p := config.keyed_top_p) is not None:
        body["top_p"] = float(top_p)
    if config.record_tokens:
        # A trajectory without token ids cannot stand in for one with them.
        body["record_tokens"] = True
    if config.record_top_k is not None:
        # Nor one without the most probable tokens, or with fewer of them.
        body["record_top_k"] = config.record_top_k
    if schemas and not config.closing_answer:
        body["closing_answer"] = False
    if config.response_schema:
        body |= {"response_schema": config.response_schema, "max_corrections": config.max_corrections}
    if config.reasoning_effort is not None:
        body["reasoning_effort"] = config.reasoning_effort
    if config.extra_body:
        body["extra_body"] = config.extra_body
    return body


def _members(body: JsonObject) -> bytes:
    return canonical_json(body)[1:-1]
