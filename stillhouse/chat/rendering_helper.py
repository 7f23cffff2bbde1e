"""The process that renders chat templates. A template is a program of whoever made the model, and may never end.

It compiles a template as transformers does, in the same sandbox, and holds at most `MAX_MEMORY_BYTES` beyond that.
"""

from typing import Final

from stillhouse.processes.worker_pool import limit_memory_growth, serve_requests
from stillhouse.types import JsonObject

MAX_MEMORY_BYTES: Final = 1 << 30
"""Memory for the conversation and its text, beyond what the process needs by itself."""
MAX_CHARACTERS: Final = 64_000_000
"""Length of one rendered text; a conversation of a million tokens has about four million characters."""


def rendered(question: JsonObject) -> JsonObject:
    """The texts of some starts of some conversations.

    Args:
        question: `templates`, Jinja sources; `variables`, what they see beside a conversation; and `conversations`,
            each with the place of its `template`, its `messages` and `tools`, and its `starts`: pairs of a number of
            messages and whether a generation prompt follows them.

    Returns:
        `limit`, the limit that one reached, or `conversations`: of each its `texts`, up to the first start that cannot
        be rendered, and `refused`, what the template says of that one. A text is the number of characters it shares
        with the beginning of the one before, and the rest.
    """
    try:
        return {"conversations": [_conversation(one, question) for one in question["conversations"]]}
    except _TooLong:
        return {"limit": f"a text of more than {MAX_CHARACTERS:,} characters"}
    except MemoryError:
        return {"limit": f"more than {MAX_MEMORY_BYTES >> 20:,} MiB of memory"}
    except RecursionError:
        return {"limit": "macros that call each other without end"}


def _conversation(one: JsonObject, question: JsonObject) -> JsonObject:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    texts: list[tuple[int, str]] = []
    before = ""
    try:
        template = _compile_jinja_template(question["templates"][one["template"]])
        variables = {**question["variables"], "tools": one["tools"], "documents": None}
        messages = one["messages"]
        for end, prompt in one["starts"]:
            text = template.render(messages=messages[:end], add_generation_prompt=prompt, **variables)
            if len(text) > MAX_CHARACTERS:
                raise _TooLong
            # Most templates only add to what they wrote: the whole text need not travel for every start.
            shared = len(before) if text.startswith(before) else 0
            texts.append((shared, text[shared:]))
            before = text
    except (_TooLong, MemoryError, RecursionError):
        raise
    except Exception as error:  # a template may raise anything
        return {"texts": texts, "refused": str(error) or type(error).__name__}
    return {"texts": texts, "refused": None}


class _TooLong(Exception):
    pass


if __name__ == "__main__":
    # Imported before memory is limited, so that the limit is left to templates.
    rendered(
        {
            "templates": ["{{ messages }}"],
            "variables": {},
            "conversations": [{"template": 0, "messages": [], "tools": None, "starts": [[0, False]]}],
        }
    )
    limit_memory_growth(MAX_MEMORY_BYTES)
    serve_requests(rendered)
