"""Identities: of a rollout, of a request within it, and of the seed it is sampled with.

A key is a digest over content alone. Its form is a promise: answers already paid for are found by it, so a field that
is added later may enter only where it differs from its default.
"""

from collections.abc import Sequence

from stillhouse.config import RolloutsConfig
from stillhouse.store import digest
from stillhouse.types import JsonObject, Message, ToolSchema


def rollout_key(
    prompt_id: str,
    sample_index: int,
    identity: str,
    config: RolloutsConfig,
    schemas: Sequence[ToolSchema],
    *,
    record_tokens: bool = False,
) -> str:
    """The identity of one rollout, in hex.

    `num_samples` is left out, so that more samples owe only the missing ones, and so is the failure budget. Tools enter
    by what the model is shown of them.

    Args:
        prompt_id: the prompt's identity.
        sample_index: which of the prompt's samples, from 0.
        identity: `Endpoint.identity`.
        config: what is sampled.
        schemas: schemas of the tools offered, in order.
        record_tokens: whether token ids are asked for; a trajectory without them cannot stand in for one with them.
    """
    body: JsonObject = {
        "prompt_id": prompt_id,
        "sample_index": sample_index,
        "model": identity,
        "system_prompt": config.system_prompt,
        "temperature": float(config.temperature),
        "top_p": float(config.top_p),
        "max_tokens": config.max_tokens,
        "max_turns": config.max_turns,
        "timeout_s": None if config.timeout_s is None else float(config.timeout_s),
        "seed": config.seed,
        "tools": list(schemas),
    }
    if record_tokens:
        body["record_tokens"] = True
    return digest(body)


def request_seed(seed: int | None, rollout_key: str, turn: int) -> int | None:
    """The seed of one request, in [0, 2**31): its own for each rollout and turn; None where no seed is wanted."""
    if seed is None:
        return None
    return int(digest([seed, rollout_key, turn])[:16], 16) % 2**31


def request_digest(messages: Sequence[Message]) -> str:
    """The identity of a request within its rollout; all else it is made of is in the rollout's key already."""
    return digest(list(messages))


def call_digest(name: str, arguments: str) -> str:
    """The identity of a tool call within its turn."""
    return digest([name, arguments])
