"""JSON lines of conversations: `train.jsonl` of rnow, rows of ROLL, OpenAI's form for fine-tuning.

A row that ends with an assistant's message is a trajectory as well as a prompt; others are prompts.
"""

from collections.abc import Callable
from typing import Final

from stillhouse.interop.loss_keys import pop_excluded, pop_unread
from stillhouse.interop.messages import first_answer, read_messages
from stillhouse.interop.source_record import SourceConversation, SourceRecord, Unmapped, pop_unmapped
from stillhouse.prompts.row import RowProblem, brief, decoded, metadata_of
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
    """Return whether a row has keys or values that only rnow writes."""
    if row.keys() == {"text"}:
        return True
    tools = row.get("tools")
    names_tools = isinstance(tools, list) and bool(tools) and all(isinstance(name, str) for name in tools)
    return isinstance(row.get("messages"), list) and (
        names_tools or bool(row.keys() & {"rewards", "docker", "variables"})
    )


def is_roll_row(row: JsonObject) -> bool:
    """Return whether a row is one of ROLL's: messages or prompt as text, and its keys for domains and answers."""
    has_prompt = isinstance(row.get("messages", row.get("prompt")), str)
    return has_prompt and bool(row.keys() & _ROLL_KEYS)


def has_messages(row: JsonObject) -> bool:
    """Return whether a row has messages, as a list or as JSON text."""
    return isinstance(row.get("messages"), list | str)


def read_rnow_row(row: JsonObject) -> SourceRecord:
    """Read a line of rnow's `train.jsonl`, also of its script for OpenRouter; see `ReadRow`."""
    row = dict(row)
    if "messages" not in row and "text" in row:
        no_prompt = Unmapped("text for continued pretraining, which has no prompt", "text", row["text"])
        return SourceRecord(unmapped=[no_prompt])
    unmapped = []
    if isinstance(variables := row.pop("docker_env", None), dict) and variables:
        unmapped.append(Unmapped(_VARIABLES, "docker_env", sorted(variables)))
    if row.get("docker"):
        unmapped.append(Unmapped(_KEPT, "docker", row["docker"]))
    return read_conversation(row, unmapped)


def read_roll_row(row: JsonObject) -> SourceRecord:
    """Read a line of ROLL's data, whose domain or tag selects the verifier; see `ReadRow`.

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
    if "test_cases" in row:
        row["test_cases"] = decoded(row["test_cases"], "test_cases")
    domain = str(row.get("domain") or row.get("tag") or "")
    verifier = "python" if row.get("test_cases") else verifier_of(domain)
    if verifier is None and "domain" in row:
        unmapped.append(Unmapped(f"no verifier for the domain {domain}: write it as @reward", "domain", domain))
    if verifier is not None:
        row["metadata"] = {"verifier": verifier, **metadata_of(row)}
    return read_conversation(row, unmapped)


def read_openai_row(
    row: JsonObject, as_openai: Callable[[JsonObject], JsonObject] = dict, *, reads_text: bool = True
) -> SourceRecord:
    """Read a line of OpenAI's fine-tuning data, which `as_openai` makes of a row; see `ReadRow`."""
    row = as_openai(row)
    unmapped = pop_unmapped(row, {"parallel_tool_calls": "calls of one turn may always come together here"})
    return read_conversation(row, unmapped + pop_unread(row), reads_text=reads_text)


def verifier_of(name: str) -> str | None:
    """Return the verifier of a domain or reward worker of ROLL; None for the config's default."""
    return next((verifier for prefix, verifier in _VERIFIERS.items() if name.lower().startswith(prefix)), None)


def read_conversation(row: JsonObject, unmapped: list[Unmapped], *, reads_text: bool = True) -> SourceRecord:
    """Return the conversation in `messages` with the row's tools, a top-level `system` first.

    Other keys become metadata. `reads_text` is as in `read_messages`.
    """
    messages = read_messages(row.pop("messages", None), reads_text=reads_text)
    excluded = pop_excluded(messages)
    system: Message = {"role": "system", "content": row.pop("system", None)}
    if system["content"] and system != messages[0]:
        if not isinstance(system["content"], str) or messages[0]["role"] == "system":
            raise RowProblem(
                f"expected system to be a text and the only one, saw {brief(system['content'])} beside messages that "
                f"begin with {brief(messages[0])}; leave one of them out"
            )
        messages = [system, *messages]
        excluded = frozenset(index + 1 for index in excluded)
    names, schemas = _pop_tools(row)
    about = dict(metadata_of(row))
    row.pop("metadata", None)
    model, turns = about.pop("teacher", None), about.pop("turns", None)
    model = model if isinstance(model, str) else None
    metadata = {**row, **about}
    conversation = SourceConversation(messages, len(messages), metadata, names, schemas, model, excluded=excluded)
    if any(message["role"] == "assistant" for message in messages) and messages[-1]["role"] in ("assistant", "tool"):
        conversation.num_prompt = first_answer(messages, turns if isinstance(turns, int) else None)
    if conversation.num_prompt == 0 and 0 not in excluded:
        raise RowProblem(
            "expected a system or user message first, saw the assistant's, which answers nothing. Put one before it, "
            "give it `weight` 0, or drop the row"
        )
    return SourceRecord([conversation], unmapped)


def _pop_tools(row: JsonObject) -> tuple[list[str] | None, list[ToolSchema] | None]:
    """Pop the row's tools; return their names, or their schemas if the row has them."""
    functions, tools = (decoded(row.pop(key, None) or [], key) for key in ("functions", "tools"))
    tools = tools or functions or []
    tools = tools if isinstance(tools, list) else [tools]
    tools = [decoded(tool, "tools") if str(tool).lstrip().startswith("{") else tool for tool in tools]
    if all(isinstance(tool, str) for tool in tools):
        return tools or None, None
    # ShareGPT's form has the functions alone, as the deprecated `functions` have.
    functions = [tool.get("function", tool) if isinstance(tool, dict) else tool for tool in tools]
    if not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in functions):
        raise RowProblem(f"expected tools to be names, or schemas with a function and its name; saw {tools!r:.60}")
    return None, [{"type": "function", "function": function} for function in functions]
