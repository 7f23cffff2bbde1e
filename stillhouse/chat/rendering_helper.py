"""The process that renders chat templates: programs written by whoever made the model, which may never end.

It compiles a template as transformers does, in the same sandbox, and holds at most `MAX_MEMORY_BYTES` beyond that.
"""

from typing import Final

from stillhouse.processes.worker_pool import limit_memory_growth, serve_requests
from stillhouse.types import JsonObject

MAX_MEMORY_BYTES: Final = 1 << 30
"""Memory for the conversation and its text, on top of what the process itself needs."""
MAX_CHARACTERS: Final = 64_000_000
"""Maximum length of one rendered text; a conversation of a million tokens has about four million characters."""


class _TooLong(Exception):
    pass


def render_batch(request: JsonObject) -> JsonObject:
    """Return the texts of some prefixes of several conversations.

    A request has `templates`, Jinja sources; `variables`, what they see besides a conversation; and `conversations`,
    each with the index of its `template`, its `messages` and `tools`, and its `prefixes`: pairs of a number of messages
    and whether a generation prompt follows them. The result is the `limit` that was exceeded, or `conversations`, each
    with its `texts`, up to the first prefix that the template refuses, and that `refusal`. A text is the number of
    characters it shares with the start of the one before, and the rest.
    """
    try:
        return {"conversations": [_render(conversation, request) for conversation in request["conversations"]]}
    except _TooLong:
        return {"limit": f"a text of more than {MAX_CHARACTERS:,} characters"}
    except MemoryError:
        return {"limit": f"more than {MAX_MEMORY_BYTES >> 20:,} MiB of memory"}
    except RecursionError:
        return {"limit": "macros that call each other without end"}


def _render(conversation: JsonObject, request: JsonObject) -> JsonObject:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    texts: list[tuple[int, str]] = []
    before = ""
    try:
        template = _compile_jinja_template(request["templates"][conversation["template"]])
        variables = {**request["variables"], "tools": conversation["tools"], "documents": None}
        messages = conversation["messages"]
        for end, with_prompt in conversation["prefixes"]:
            text = template.render(messages=messages[:end], add_generation_prompt=with_prompt, **variables)
            if len(text) > MAX_CHARACTERS:
                raise _TooLong
            # Most templates only append, so the whole text need not be sent for every prefix.
            shared = len(before) if text.startswith(before) else 0
            texts.append((shared, text[shared:]))
            before = text
    except (_TooLong, MemoryError, RecursionError):
        raise
    except Exception as error:  # a template may raise anything
        return {"texts": texts, "refusal": str(error) or type(error).__name__}
    return {"texts": texts, "refusal": None}


if __name__ == "__main__":
    # Imports what rendering needs before memory is limited, so that the whole limit is left to templates.
    warm_up = {"template": 0, "messages": [], "tools": None, "prefixes": [[0, False]]}
    render_batch({"templates": ["{{ messages }}"], "variables": {}, "conversations": [warm_up]})
    limit_memory_growth(MAX_MEMORY_BYTES)
    serve_requests(render_batch)
