"""JSON lines of conversations: `train.jsonl` of rnow, rows of ROLL, OpenAI's form for fine-tuning.

A row that ends with an assistant's message is a trajectory as well as a prompt; others are prompts.
"""

from typing import Final

import orjson

from stillhouse.interop.loss_keys import pop_excluded, pop_unread
from stillhouse.interop.messages import first_answer, read_messages
from stillhouse.interop.source_record import SourceConversation, SourceRecord, Unmapped, pop_unmapped
from stillhouse.prompts.row import RowProblem, brief, decoded
from stillhouse.store import exact_json
from stillhouse.types import JsonObject, Message, ToolSchema

_VARIABLES: Final = "values of environment variables are never copied; only their names are listed"
_KEPT: Final = "kept in the prompt's metadata; nothing here acts on it"
_NO_SANDBOX: Final = "a container for each prompt is not started here: give the model tools that reach one"
_VERIFIERS: Final = {
    "math": "math",
    "code": "python",
    "llm_judge": "judge",
    "crossthinkqa": "choice",
    "general_val": "choice",
}
"""Verifiers by prefix of ROLL's domains, tags and names of reward workers."""
_ROLL_KEYS: Final = frozenset({"tag", "domain", "ground_truth", "test_cases", "difficulty", "sandbox_image"})


def is_rnow_row(row: JsonObject) -> bool:
    """Whether a row has keys or values that only rnow writes."""
    if row.keys() == {"text"}:
        return True
    tools = row.get("tools")
    names_tools = isinstance(tools, list) and bool(tools) and all(isinstance(name, str) for name in tools)
    return isinstance(row.get("messages"), list) and (
        names_tools or bool(row.keys() & {"rewards", "docker", "variables"})
    )


def is_roll_row(row: JsonObject) -> bool:
    """Whether a row is one of ROLL's: messages or prompt as text, and its keys for domains and answers."""
    has_prompt = isinstance(row.get("messages", row.get("prompt")), str)
    return has_prompt and bool(row.keys() & _ROLL_KEYS)


def has_messages(row: JsonObject) -> bool:
    """Whether a row has messages, as a list or as JSON text."""
    return isinstance(row.get("messages"), list | str)


def read_rnow_row(row: JsonObject) -> SourceRecord:
    """Reads a line of rnow's `train.jsonl`, also of its script for OpenRouter; see `ReadRow`."""
    row = dict(row)
    if "messages" not in row and "text" in row:
        no_prompt = Unmapped("text for continued pretraining, which has no prompt", "text", row["text"])
        return SourceRecord(unmapped=[no_prompt])
    variables = row.pop("docker_env", None)
    unmapped = (
        [Unmapped(_VARIABLES, "docker_env", sorted(variables))] if isinstance(variables, dict) and variables else []
    )
    unmapped += [Unmapped(_KEPT, key, row[key]) for key in ("docker",) if row.get(key)]
    return read_conversation(row, unmapped)


def read_roll_row(row: JsonObject) -> SourceRecord:
    """Reads a line of ROLL's data, whose domain or tag selects the verifier; see `ReadRow`.

    ROLL writes an empty string where a row has no value of a column.
    """
    row = {key: value for key, value in row.items() if value != ""}
    text = row.pop("prompt", None)
    unmapped = []
    if image := row.get("sandbox_image"):
        unmapped.append(Unmapped(_NO_SANDBOX, "sandbox_image", image))
    if row.get("messages") is None:
        row["messages"] = [{"role": "user", "content": text}]
    elif text is not None and all(message.get("content") != text for message in read_messages(row["messages"])):
        unmapped.append(Unmapped("says another thing than the row's messages, which stand", "prompt", text))
    cases = row.get("test_cases")
    if isinstance(cases, str):
        try:
            row["test_cases"] = exact_json.loads(cases)
        except orjson.JSONDecodeError as error:
            raise RowProblem(f"expected test_cases to be JSON: {error}; saw {cases[:60]!r}") from error
    domain = str(row.get("domain") or row.get("tag") or "")
    verifier = "python" if row.get("test_cases") else verifier_of(domain)
    if verifier is None and "domain" in row:
        unmapped.append(Unmapped(f"no verifier for the domain {domain}: write it as @reward", "domain", domain))
    if verifier is not None:
        row["metadata"] = {"verifier": verifier, **_object(row, "metadata")}
    return read_conversation(row, unmapped)


def read_openai_row(row: JsonObject, *, reads_text: bool = True) -> SourceRecord:
    """Read a line of OpenAI's fine-tuning data; see `ReadRow` and `read_conversation`."""
    row = dict(row)
    unmapped = pop_unmapped(row, {"parallel_tool_calls": "calls of one turn may always come together here"})
    return read_conversation(row, unmapped + pop_unread(row), reads_text=reads_text)


def verifier_of(name: str) -> str | None:
    """The verifier of a domain or reward worker of ROLL; None for the config's default."""
    return next((verifier for prefix, verifier in _VERIFIERS.items() if name.lower().startswith(prefix)), None)


def read_conversation(row: JsonObject, unmapped: list[Unmapped], *, reads_text: bool = True) -> SourceRecord:
    """The conversation in `messages` with the row's tools, a top-level `system` first; other keys become metadata.

    `reads_text` is as in `read_messages`.
    """
    messages = read_messages(row.pop("messages", None), reads_text=reads_text)
    excluded = pop_excluded(messages)
    if system := _pop_system(row, messages):
        messages = [{"role": "system", "content": system}, *messages]
        excluded = frozenset(index + 1 for index in excluded)
    names, schemas = _pop_tools(row)
    metadata = _object(row, "metadata")
    row.pop("metadata", None)
    model, turns = metadata.pop("teacher", None), metadata.pop("turns", None)
    metadata = {**row, **metadata}
    model = model if isinstance(model, str) else None
    conversation = SourceConversation(messages, len(messages), metadata, names, schemas, model, excluded=excluded)
    if any(message["role"] == "assistant" for message in messages) and messages[-1]["role"] in ("assistant", "tool"):
        conversation.num_prompt = first_answer(messages, turns if isinstance(turns, int) else None)
    if conversation.num_prompt == 0 and 0 not in excluded:
        raise RowProblem(
            "the conversation begins with the assistant, so that there is nothing to answer; expected a system or user "
            "message first. Put one before it, give its message `weight` 0, or drop the row"
        )
    return SourceRecord([conversation], unmapped)


def _pop_system(row: JsonObject, messages: list[Message]) -> str | None:
    """Pop the system message that stands beside the others, unless it is among them as well.

    Raises:
        RowProblem: it is no text, or the messages have another one.
    """
    system = row.pop("system", None)
    if not isinstance(system, str | None):
        raise RowProblem(f"expected system to be a text, saw {brief(system)}")
    other = messages[0].get("content") if messages[0]["role"] == "system" else None
    if system and other not in (None, system):
        raise RowProblem(
            f"system is {brief(system)}, and the messages begin with another one, {brief(other)}; leave one of them out"
        )
    return system if system and other is None else None


def _pop_tools(row: JsonObject) -> tuple[list[str] | None, list[ToolSchema] | None]:
    """Pop the row's tools; return their names and, if the row has them, their schemas."""
    functions, tools = (decoded(row.pop(key, None) or None, key) for key in ("functions", "tools"))
    tools = tools or functions or []
    tools = [
        decoded(tool, "tools") if isinstance(tool, str) and tool.lstrip().startswith("{") else tool
        for tool in (tools if isinstance(tools, list) else [tools])
    ]
    if all(isinstance(tool, str) for tool in tools):
        return tools or None, None
    # ShareGPT's form has the functions alone, as the deprecated `functions` have.
    functions = [tool.get("function", tool) if isinstance(tool, dict) else tool for tool in tools]
    if not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in functions):
        raise RowProblem(f"expected tools to be names, or schemas with a function and its name; saw {tools!r:.60}")
    names = [function["name"] for function in functions]
    return names, [{"type": "function", "function": function} for function in functions]


def _object(row: JsonObject, key: str) -> JsonObject:
    value = decoded(row.get(key), key)
    if value is not None and not isinstance(value, dict):
        raise RowProblem(f"expected {key} to be an object, saw {type(value).__name__} {value!r:.60}")
    return dict(value or {})
