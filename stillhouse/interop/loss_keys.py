"""The keys by which rows of trainers say what of them is learnt; each is read, or refused by name."""

from collections.abc import Sequence
from typing import Any, Final

from stillhouse.chat.turn import said_in
from stillhouse.interop.messages import first_answer
from stillhouse.interop.source_record import SourceConversation, Unmapped, pop_unmapped
from stillhouse.prompts.row import RowProblem, brief
from stillhouse.types import JsonObject, Message

LOSS_KEYS: Final = ("weight", "train", "trainable", "training", "loss", "loss_mask")
"""Of a message: whether it is learnt. OpenAI; axolotl; verl; axolotl; ms-swift; verl."""
_OTHER_MASKS: Final = ("mask", "masked", "masks", "train_detail", "training_detail")
_UNREAD: Final = dict.fromkeys(
    ("chosen", "rejected", "rejected_completion", "rejected_messages", "rejected_response"),
    "preferences are not learnt here; the row's own answer is kept",
) | {"chat_template_kwargs": "variables of the template are those of student.chat_template_kwargs, for all rows"}
_MEDIA: Final = ("image", "images", "video", "videos", "audio", "audios")
_WEIGHTS: Final = ("weight", "sample_weight", "loss_mask")
_WHOLE_ROW: Final = "a row is learnt as often as others: rows of one weight can be an entry of sft.sources"
LEARNT_OTHERWISE: Final = frozenset({*_UNREAD, *_WEIGHTS})
"""Keys of a row that change what there is to learn, and that nothing here acts on."""


def pop_excluded(messages: Sequence[Any]) -> frozenset[int]:
    """Pop the keys that turn the loss of a message on or off; return the assistant's messages without it, by index.

    Raises RowProblem if a value is neither on nor off, or turns on a message that is not the assistant's.
    """
    excluded = set()
    for index, message in enumerate(messages):
        for key in (*LOSS_KEYS, *_OTHER_MASKS):
            value = message.pop(key, None)
            if value is None:
                continue
            where = f"messages[{index}].{key}"
            if key in _OTHER_MASKS or not isinstance(value, int | float) or value not in (0, 1):
                raise RowProblem(
                    f"{where}: a message is learnt wholly or not at all; expected 0, 1, true or false under one of "
                    f"{', '.join(LOSS_KEYS)}, saw {brief(value)}. Mend or drop the row"
                )
            if message.get("role") != "assistant":
                if value:
                    raise RowProblem(f"{where} is on, and only the assistant's messages are learnt; leave the key out")
            elif not value:
                excluded.add(index)
    return frozenset(excluded)


def is_empty_answer(message: Message) -> bool:
    """Return whether a message of the assistant says nothing, and calls nothing."""
    is_answer = message["role"] == "assistant" and not message.get("tool_calls")
    return is_answer and not said_in(message).strip()


def pop_unread(row: JsonObject) -> list[Unmapped]:
    """Pop the keys of a row that nothing here acts on; return those that have a value, and what else is of the kind.

    Raises RowProblem if the row has an answer that is not to be learnt, or parts that are no text.
    """
    if row.get("label") is False:
        raise RowProblem("label is false, which marks the answer as undesired; drop the row")
    if media := next((key for key in _MEDIA if row.get(key)), None):
        raise RowProblem(f"{media} is {brief(row[media])}, and students read text alone; drop the row")
    return pop_unmapped(row, _UNREAD) + [
        Unmapped(_WHOLE_ROW, key, row[key]) for key in _WEIGHTS if row.get(key, 1) not in (None, 1)
    ]


def without_gaps(conversation: SourceConversation) -> list[Unmapped]:
    """Move the end of the prompt behind the last answer that is not learnt; return what becomes context by that.

    A trajectory is learnt wholly. One without any answer to learn is left with no message. An empty last answer is
    left out, so that its prompt is one to ask.
    """
    messages, start = conversation.messages, conversation.num_prompt
    if len(messages) == start + 1 and is_empty_answer(messages[-1]):
        messages.pop()
        return [Unmapped("an empty answer: left out, its prompt is kept", "messages")]
    last = max(conversation.excluded, default=-1)
    if last < start:
        return []
    conversation.num_prompt = last + 1 + first_answer(messages[last + 1 :])
    if conversation.num_prompt == len(messages):
        conversation.messages = []
        return [Unmapped("no turn of the assistant has a weight: nothing to train on", "messages")]
    indices = (index for index in range(start, last) if index not in conversation.excluded)
    context = [messages[index] for index in indices if messages[index]["role"] == "assistant"]
    reason = "turns before one of weight 0: they are context, not trained on"
    return [Unmapped(reason, "messages", context)] if context else []
