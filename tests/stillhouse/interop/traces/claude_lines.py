"""Lines of Claude Code's session files, small and by hand, in the form that version 2.1 writes."""

from typing import Any

from stillhouse.types import JsonObject

KEYS = (
    "sk-ant-api03-" + "Ab1-".join("cDeFgHiJkLmNoPqRsTuV" for _ in range(5)),
    "ghp_" + "aB3dE5fG7hI9jK1lM2nO4pQ6rS8tU0vW2xY4",
)
"""In the form of their issuers; nobody's."""


def event(number: int, parent: int | None, kind: str, content: Any, **more: Any) -> JsonObject:
    """An event whose uuid is its number; `more` are further keys, `message_id` that of the model's message."""
    message_id = more.pop("message_id", None)
    message: JsonObject = {"role": kind, "content": content}
    if kind == "assistant":
        usage = {"input_tokens": 3, "cache_read_input_tokens": 100, "output_tokens": number}
        model = more.pop("model", "claude-opus-4-5")
        message |= {"id": message_id or f"msg_{number}", "type": "message", "model": model, "usage": usage}
    return {
        "parentUuid": None if parent is None else f"u{parent}",
        "isSidechain": False,
        "userType": "external",
        "cwd": "/home/ada/project",
        "sessionId": "5c2f",
        "version": "2.1.63",
        "type": kind,
        "message": message,
        "uuid": f"u{number}",
        "timestamp": f"2026-03-01T10:00:{number:02}.000Z",
        **more,
    }


def text(said: str) -> list[JsonObject]:
    return [{"type": "text", "text": said}]


def call(call_id: str, expression: str = "2 + 2") -> list[JsonObject]:
    return [{"type": "tool_use", "id": call_id, "name": "calculator", "input": {"expression": expression}}]


def result(call_id: str, said: Any = "4", **more: Any) -> list[JsonObject]:
    return [{"tool_use_id": call_id, "type": "tool_result", "content": said, **more}]


def boundary(number: int, after: int) -> JsonObject:
    about = {"subtype": "compact_boundary", "logicalParentUuid": f"u{after}", "compactMetadata": {"trigger": "auto"}}
    line = event(number, None, "system", "", **about)
    del line["message"]
    return line | {"content": "Conversation compacted"}


def session(number: int = 1) -> list[JsonObject]:
    """A question, a turn of thinking and two parallel calls on four lines, their results, an answer."""
    asked = event(1, None, "user", f"What is {number} + {number}, and twice that?")
    thought = [{"type": "thinking", "thinking": "Two sums.", "signature": "c2ln"}]
    return [
        {"type": "summary", "summary": "Sums", "leafUuid": "u8"},
        asked,
        event(2, 1, "assistant", thought, message_id=f"msg_a{number}"),
        event(3, 2, "assistant", text("I calculate."), message_id=f"msg_a{number}"),
        event(4, 3, "assistant", call("toolu_1", f"{number} + {number}"), message_id=f"msg_a{number}"),
        event(5, 4, "assistant", call("toolu_2", f"{number} * 4"), message_id=f"msg_a{number}"),
        event(6, 4, "user", result("toolu_1", str(number + number))),
        event(7, 5, "user", result("toolu_2", text(str(number * 4)))),
        event(8, 7, "assistant", text(f"{number + number} and {number * 4}."), message_id=f"msg_b{number}"),
    ]
