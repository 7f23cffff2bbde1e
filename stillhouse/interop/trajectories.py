"""A foreign conversation as a trajectory, with no more said of its turns than is known."""

import orjson

from stillhouse.interop.source_record import Conversation
from stillhouse.store import digest
from stillhouse.types import Message, ToolSchema, Trajectory, Turn


def trajectory_of(
    conversation: Conversation, prompt_id: str, sample_index: int, schemas: list[ToolSchema], model: str
) -> Trajectory:
    """The record of a conversation that was sampled elsewhere.

    Its key hashes what it is, since nobody knows how it was sampled: a rollout read twice is one trajectory. Tokens are
    attributed to turns where there is one turn to attribute them to.
    """
    stop_reason = conversation.stop_reason
    key = digest(["converted", prompt_id, sample_index, conversation.messages, schemas, model, stop_reason.value])
    return Trajectory(
        rollout_key=key,
        prompt_id=prompt_id,
        sample_index=sample_index,
        messages=conversation.messages,
        tools=schemas,
        turns=_turns(conversation, model),
        stop_reason=stop_reason,
        model=model,
        error=conversation.failure,
    )


def _turns(conversation: Conversation, model: str) -> list[Turn]:
    sampled = conversation.messages[conversation.num_prompt :]
    places = [index for index, message in enumerate(sampled) if message["role"] == "assistant"]
    ends = [*places, len(sampled)][1:]
    return [
        Turn(
            finish_reason=_finish_reason(conversation, sampled[place], is_last=place == places[-1]),
            usage=conversation.usage if len(places) == 1 else {},
            latency_s=None,
            model=model,
            num_tool_errors=sum(map(_is_error, sampled[place + 1 : end])),
        )
        for place, end in zip(places, ends, strict=True)
    ]


def _finish_reason(conversation: Conversation, message: Message, *, is_last: bool) -> str:
    if message.get("tool_calls"):
        return "tool_calls"
    return "length" if is_last and conversation.is_truncated else "unknown"


def _is_error(message: Message) -> bool:
    """Whether a tool's result is an error in the form that rnow and its scripts write: an object of the key `error`."""
    content = message.get("content")
    if message["role"] != "tool" or not isinstance(content, str) or not content.startswith("{"):
        return False
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and list(value) == ["error"]
