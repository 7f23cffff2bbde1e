r"""The answer in a model's message, without its thinking and the words around it.

An answer may be marked: by `\boxed{}`, `<answer>` tags, a closing line `#### 72` as in GSM8K
(https://arxiv.org/abs/2110.14168), or a line `Answer: 72`. The last mark wins.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from stillhouse.chat.content import text_of
from stillhouse.chat.thoughts import split_thoughts
from stillhouse.types import Message

# Escaped braces are no braces.
_BRACES: Final = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[{}\\]|[{}]")
_WORDED: Final = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf)\s*\{([^{}]*)\}")
_TAG: Final = re.compile(r"<(/?)answer>", re.IGNORECASE)
# In Markdown four of them also make a heading, which never ends a text.
_HASHES: Final = re.compile(r"^####[ \t]+(\S[^\n]*)\s*\Z", re.MULTILINE)
_LABELLED: Final = re.compile(
    r"^[ \t>*_#-]*(?:the[ \t]+)?(?:(?:final|correct)[ \t]+)?answer[ \t]*[*_]*[ \t]*(?::|\n)[\s*_]*(\S[^\n]*)",
    re.MULTILINE | re.IGNORECASE,
)
_SPOKEN: Final = re.compile(r"\banswer(?:[ \t]+to[ \t][^\n.]{0,80}?)?[ \t]+is\b[ \t]*:?\s*(\S[^\n]*)", re.IGNORECASE)


def final_answer(messages: Sequence[Message]) -> str | None:
    """The text of the last message without thinking; None if it is empty, not the assistant's, or calls tools."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or last.get("tool_calls"):
        return None
    answer = split_thoughts(text_of(last)).answer
    return answer if answer.strip() else None


def stated_answer(text: str) -> str | None:
    """The marked answer of a text, if any."""
    marks = [(last.start(1), bare(last[1])) for last in (_last(_HASHES, text), _last(_LABELLED, text)) if last]
    marks += [mark for mark in (_last_boxed(text), _last_tagged(text)) if mark is not None]
    return max(marks)[1] if marks else None


def spoken_answer(text: str) -> str | None:
    """What follows the last `answer is` in its line; weaker than a mark."""
    last = _last(_SPOKEN, text)
    return None if last is None else bare(last[1])


def whole_answers(text: str) -> Iterator[str]:
    """Readings of a text as an answer: all of it, then its marked part, else what follows `answer is`."""
    yield text
    stated = stated_answer(text)
    answer = spoken_answer(text) if stated is None else stated
    if answer is not None:
        yield answer


def bare(text: str) -> str:
    r"""A text without enclosing Markdown emphasis, dollars and `\text{}`."""
    bare = text.strip().strip("*_").strip().removeprefix("$").removesuffix("$").strip()
    worded = _WORDED.fullmatch(bare)
    return worded[1].strip() if worded else bare


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _last_boxed(text: str) -> tuple[int, str] | None:
    """Position and content of the box that closes last; unclosed boxes are ignored."""
    last = None
    opened: list[int | None] = []
    for brace in _BRACES.finditer(text):
        kind = brace[0]
        if kind == "{":
            opened.append(None)
        elif kind.startswith("\\") and len(kind) > 2:
            opened.append(brace.end())
        elif kind == "}" and opened:
            start = opened.pop()
            if start is not None:
                last = (start, bare(text[start : brace.start()]))
    return last


def _last_tagged(text: str) -> tuple[int, str] | None:
    """Position and content of the last closed `<answer>`."""
    last, start = None, None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            start = tag.end()
        elif start is not None:
            last, start = (start, bare(text[start : tag.start()])), None
    return last
