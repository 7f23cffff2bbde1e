"""What a message says in words, whichever form its content has."""

from typing import Any

from stillhouse.types import Message


def text_of(message: Message) -> str:
    """The text of a message's content, which endpoints also write as a list of parts; what is no text is left out."""
    content: Any = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""
