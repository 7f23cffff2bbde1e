"""Rows of other programs as conversations to learn, read as `stillhouse convert` reads them.

Text is not interpreted: reasoning or calls inside a message's content are rendered as they are.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from stillhouse.chat.round_trip import call_problem
from stillhouse.chat.turn import said_in
from stillhouse.dataset.totals import num_given
from stillhouse.interop.formats import ROW_FORMATS
from stillhouse.interop.loss_keys import LEARNT_OTHERWISE, is_empty_answer
from stillhouse.interop.messages import first_answer
from stillhouse.prompts.row import RowProblem, brief, checked_messages
from stillhouse.store.fingerprint import prompt_id
from stillhouse.types import JsonObject, Message, Prompt, PromptMetadata, ToolSchema

_FORMS: Final = tuple(one for one in ROW_FORMATS if one.name in ("sharegpt", "alpaca", "completion", "openai"))


class TrainingConversation(NamedTuple):
    messages: list[Message]
    tools: list[ToolSchema]
    prompt_id: str
    """The row's own, or else the hash of the messages before the first answer and of the tools' names."""
    tag: str | None
    row_id: str | None
    """The row's own, where a dataset of this project has one."""
    excluded: frozenset[int] = frozenset()
    """Indices of assistant messages that are only context."""


def dataset_conversation(row: JsonObject) -> TrainingConversation:
    """Return the conversation in a row of a dataset of this project, which has been checked."""
    messages = row["messages"]
    _check_parts(messages)
    given = enumerate(messages[: num_given(messages, row["turns"])])
    excluded = frozenset(index for index, message in given if message["role"] == "assistant")
    return TrainingConversation(messages, row["tools"] or [], row["prompt_id"], row["tag"], row["id"], excluded)


def parse_conversation(row: JsonObject) -> TrainingConversation:
    """Return the conversation in a row of another program; raise a RowProblem where it is none."""
    form = next((form for form in _FORMS if form.detects(row)), None)
    if form is None:
        raise RowProblem(
            "expected `messages`, `conversations`, `prompt` and `completion`, or `instruction` and `output`; saw the "
            f"keys {', '.join(row) or 'none'}. Rename its columns; `stillhouse convert` reads some other forms"
        )
    record = form.read(row, reads_text=False)
    if problem := next((one for one in record.unmapped if one.key in LEARNT_OTHERWISE), None):
        raise RowProblem(f"{problem.key} is {brief(problem.value)}: {problem.reason}. Leave it out, or drop the row")
    (conversation,) = record.conversations
    if conversation.tools and conversation.schemas is None:
        raise RowProblem(
            f"expected tools to be schemas with a function and its name, saw {brief(conversation.tools)}. Tools by "
            "name alone are not enough to train on: write their schemas"
        )
    messages = checked_messages(conversation.messages)
    _check_parts(messages)
    asked, tag = row.get("prompt_id"), row.get("tag")
    if not isinstance(asked, str) or not asked:
        asked = prompt_id(messages[: first_answer(messages)], conversation.tools)
    return TrainingConversation(
        messages=messages,
        tools=conversation.schemas or [],
        prompt_id=asked,
        tag=tag if isinstance(tag, str) else None,
        row_id=row.get("id") if isinstance(row.get("id"), str) else None,
        excluded=conversation.excluded,
    )


def _check_parts(messages: list[Message]) -> None:
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list) and not all(isinstance(part.get("text"), str) for part in content):
            raise RowProblem(
                f"expected messages[{number}].content to be parts with a text, since students read nothing else; saw "
                f"{brief(content)}. Drop the row"
            )


def answer_problem(conversation: TrainingConversation, turn_tokens: Sequence[str]) -> str | None:
    """Return why an answer must not be learnt: it is empty, calls with no object, or holds one of `turn_tokens`."""
    for index, message in enumerate(conversation.messages):
        if message["role"] != "assistant" or index in conversation.excluded:
            continue
        if is_empty_answer(message):
            return f"messages[{index}] is an empty answer, which would be learnt as an immediate end"
        held = next((token for token in turn_tokens if token in said_in(message)), None)
        if problem := call_problem(message) or (held and f"it holds {held}, which begins or ends a turn"):
            return f"messages[{index}] would be learnt as something else: {problem}"
    return None


def validation_prompts(rows: Iterable[JsonObject], max_prompts: int) -> tuple[list[Prompt], dict[str, PromptMetadata]]:
    """Return the first `max_prompts` prompts of validation rows with an expected answer, and their metadata."""
    prompts: dict[str, Prompt] = {}
    metadata: dict[str, PromptMetadata] = {}
    for row in rows:
        if len(prompts) == max_prompts:
            break
        asked = row["prompt_id"]
        if row.get("expected_answer") is None or asked in prompts:
            continue
        messages = row["messages"][: first_answer(row["messages"])]
        prompts[asked] = Prompt(asked, messages, [tool["function"]["name"] for tool in row["tools"] or ()])
        metadata[asked] = PromptMetadata(
            asked, row["expected_answer"], row.get("tag"), row["verifier"], row.get("metadata") or {}
        )
    return list(prompts.values()), metadata
