"""The keys by which rows of trainers say what of them is learnt; each is read, or refused by name."""

from collections.abc import Sequence
from typing import Final

from stillhouse.interop.messages import first_answer
from stillhouse.interop.source_record import SourceConversation, Unmapped, pop_unmapped
from stillhouse.prompts.row import RowProblem, brief
from stillhouse.types import JsonObject

LOSS_KEYS: Final = ("weight", "train", "trainable", "training", "loss", "loss_mask")
"""Of a message: whether it is learnt. OpenAI; axolotl; verl; axolotl; ms-swift; verl."""
_OTHER_MASKS: Final = ("mask", "masked", "masks", "train_detail", "training_detail")
_UNREAD: Final = {
    **dict.fromkeys(
        ("chosen", "rejected", "rejected_completion", "rejected_messages", "rejected_response"),
        "preferences are not learnt here; the row's own answer is kept",
    ),
    **dict.fromkeys(("image", "images", "video", "videos", "audio", "audios"), "students read text alone"),
    "chat_template_kwargs": "variables of the template are those of student.chat_template_kwargs, for all rows",
}
_WEIGHTS: Final = ("weight", "sample_weight", "loss_mask")
_WHOLE_ROW: Final = "a row is learnt as often as others: rows of one weight can be an entry of sft.sources"
_UNDESIRED: Final = "marks the answer as undesired, and answers are only learnt"
LEARNT_OTHERWISE: Final = frozenset({*_UNREAD, *_WEIGHTS, "label"})
"""Keys of a row that change what there is to learn, and that nothing here acts on."""


def pop_excluded(messages: Sequence[JsonObject]) -> frozenset[int]:
    """Pop the keys that turn the loss of a message on or off; return the assistant's messages without it, by index.

    Raises:
        RowProblem: a value is neither on nor off, or turns on a message that is not the assistant's.
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


def pop_unread(row: JsonObject) -> list[Unmapped]:
    """Pop the keys of a row that nothing here acts on; return those that have a value, and what else is of the kind."""
    unmapped = pop_unmapped(row, _UNREAD)
    if row.get("label") is False:
        unmapped.append(Unmapped(_UNDESIRED, "label", False))
    return unmapped + [Unmapped(_WHOLE_ROW, key, row[key]) for key in _WEIGHTS if row.get(key, 1) not in (None, 1)]


def without_gaps(conversation: SourceConversation) -> list[Unmapped]:
    """Move the end of the prompt behind the last answer that is not learnt; return what becomes context by that.

    A trajectory is learnt wholly. One without any answer to learn is left with no message.
    """
    messages, start = conversation.messages, conversation.num_prompt
    last = max(conversation.excluded, default=-1)
    if last < start:
        return []
    conversation.num_prompt = last + 1 + first_answer(messages[last + 1 :])
    if conversation.num_prompt == len(messages):
        conversation.messages = []
        return [Unmapped("no turn of the assistant has a weight: nothing to train on", "messages")]
    context = [
        messages[index]
        for index in range(start, last)
        if messages[index]["role"] == "assistant" and index not in conversation.excluded
    ]
    reason = "turns before one of weight 0: they are context, not trained on"
    return [Unmapped(reason, "messages", context)] if context else []
