r"""Read the final answer in a model's message: the one place that decides which text verifiers compare.

Thinking never counts. In what is left the order of evidence is:

1. *Marks*: a box (`\boxed{}`), `<answer>` tags, a label as `Answer: 72` in one of the languages below, a closing line
   `#### 72` as in GSM8K (https://arxiv.org/abs/2110.14168), the key `"answer"` of JSON. The last one wins, except a box
   behind a label whose sentence gives a reason or goes on, and a closing heading. Boxes may be joined.
2. What is *said* to be the answer, last: `the answer is 72`.
3. The *whole* text.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from stillhouse.chat.content import text_of
from stillhouse.chat.thoughts import split_thoughts
from stillhouse.types import Message

# Escaped braces are no braces.
_BRACES: Final = re.compile(r"\\(?:boxed|fbox)\s{0,9}\{|\\[{}\\]|[{}]")
_BOX: Final = re.compile(r"\\(?:boxed|fbox)\s{0,9}\{([^{}]*)\}")
_JOINT: Final = re.compile(r"[\s$]{0,9}(?:,|;|,?\s?and\b|,?\s?or\b)?[\s$]{0,9}")
_REASON: Final = re.compile(r"\b(?:because|since|as|where|for|from|using|here|note|check)\b[^.!?\n]*\Z", re.IGNORECASE)
_GOES_ON: Final = re.compile(r"[\s$)]{0,9}[^\W\d_]{2}")
_WORDED: Final = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf)\s*\{([^{}]*)\}")
_TAGGED: Final = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.IGNORECASE | re.DOTALL)
# In Markdown four of them also make a heading.
_HASHES: Final = re.compile(r"^####[ \t]+(?=\S[^\n]*\s*\Z)", re.MULTILINE)
_HEADING: Final = re.compile(r"(?!\W*\d)\S+[ \t]+\S")
_KEY: Final = re.compile(r'"(?:final[ _]?)?answer"\s{0,9}:\s{0,9}', re.IGNORECASE)
_BLOCK: Final = re.compile(
    r"```[ \t]*\w*[ \t]*\n(?P<fence>.*?)```|\$\$(?P<dollars>.*?)\$\$|\\\[(?P<display>.*?)\\\]"
    r"|(?P<bullets>(?:(?:[-*\u2022]|\d{1,3}[.)])[ \t]+\S[^\n]*(?:\n[ \t]*|\Z)){2,})",
    re.DOTALL,
)
# English, German, Dutch, French, Spanish, Portuguese, Italian, Russian, Polish, Turkish; Chinese, Japanese, Korean,
# Arabic, Hindi, Indonesian, Vietnamese, Thai.
_WORDS: Final = (
    *("answer", "antwort", "antwoord", "réponse", "respuesta", "resposta", "risposta", "ответ", "odpowiedź", "cevap"),
    *("答案", "答え", "解答", "回答", "正解", "정답", "답", "الإجابة", "الجواب", "उत्तर", "jawaban", "đáp án", "คำตอบ"),
)
_NAME: Final = re.compile("|".join(_WORDS))
_MAX_NAMES: Final = 32
"""Most mentions of an answer looked at, from the last one backwards."""
_BEFORE_CHARS: Final = 80
# Looked for behind a name,
_SUFFIX: Final = r"(?:[ \t](?:finale?|correcte|correcta|correta|corretta|الصحيحة|النهائية))?"
_LABEL: Final = re.compile(
    rf"{_SUFFIX}[ \t]?[*_]{{0,3}}[ \t]?(?:[:\uff1a=]|(?P<newline>\n))(?:[*_]{{1,3}}(?=\s))?[\s*]*(?=[^\s*])",
    re.IGNORECASE,
)
_SAID: Final = re.compile(
    rf"{_SUFFIX}(?:[ \t]+(?:to|for)[ \t][^\n.]{{0,80}}?)?"
    r"(?:[ \t]+(?:is|(?:must|should|has[ \t]to)[ \t]be|ist|lautet|est|es|é|è|هي|هو)\b"
    r"|[ \t]?(?:是|为|為|は|은|는))[ \t]?[:\uff1a]?\s{0,9}(?=\S)",
    re.IGNORECASE,
)
# and before the name of a label.
_BEFORE: Final = re.compile(
    r"(?:(?P<line>^[ \t>*_#\-]*)|(?<=[.!?;:,)\uff01\uff1f\uff1b\uff0c\u3001\u3002])[ \t*_]{0,4}|\bfinal[ \t])"
    r"(?:(?:so|thus|hence|therefore|and|the|my|our|your|final|correct|right|best|die|der|meine|richtige|korrekte|"
    r"endgültige|het|juiste|la|ma|bonne|mi|a|minha|mia|мой|правильный|окончательный|最终|最終|正确|正確|최종|सही|अंतिम)"
    r"[ \t,的]{0,3}){0,4}\Z",
    re.MULTILINE | re.IGNORECASE,
)


class Answer(NamedTuple):
    text: str
    """Without the Markdown emphasis, dollars, box and `\\text{}` around it, unless it is the whole text."""
    start: int
    """Where the text after thinking begins to state it."""
    kind: Literal["mark", "key", "said", "whole"]
    """Its evidence; "key" is the mark in JSON."""


def final_answer(messages: Sequence[Message]) -> str | None:
    """Return the last message's text without thinking; None if it is empty, not the assistant's, or calls tools."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or last.get("tool_calls"):
        return None
    answer = split_thoughts(text_of(last)).answer
    return answer if answer.strip() else None


def read_answer(text: str) -> Answer:
    """Return the final answer of a text without thinking, by the order of evidence above."""
    # The only character whose lower case is longer.
    folded = text.replace("\u0130", "i").lower()
    label, said = _named(text, deque(_NAME.finditer(folded), maxlen=_MAX_NAMES))
    marks = [label] if label else []
    if "<answer>" in folded and (tagged := _last(_TAGGED, text)):
        marks.append(Answer(bare(tagged[1]), tagged.start(), "mark"))
    if 'answer"' in folded and (key := _last(_KEY, text)):
        marks.append(Answer(_value(text, key.end()), key.start(), "key"))
    if "\\boxed" in text or "\\fbox" in text:
        marks += _boxed(text, label.start if label else len(text))
    if "####" in text and (hashes := _last(_HASHES, text)):
        line = text[hashes.end() :].strip()
        if not marks or not _HEADING.match(line):
            marks.append(Answer(bare(line), hashes.start(), "mark"))
    return max(marks, key=lambda mark: mark.start) if marks else said or Answer(text, 0, "whole")


def expected_answer(text: str) -> str:
    r"""Return the answer in an expected one, which may be stored as a solution: `... #### 72`, `\boxed{72}`."""
    read = read_answer(text)
    return read.text if read.kind == "mark" else text


def bare(text: str) -> str:
    r"""Return a text without enclosing Markdown emphasis, dollars, box and `\text{}`."""
    bare = text.strip().strip("*").strip()
    if len(bare) > 1 and bare[0] == bare[-1] == "`":
        bare = bare.strip("`").strip()
    bare = _BOX.sub(r"\1", bare) if "box" in bare else bare
    for opening, closing in (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$")):
        inside = bare.removeprefix(opening).removesuffix(closing)
        if len(bare) - len(inside) == len(opening + closing) and opening not in inside:
            bare = inside.strip()
    worded = _WORDED.fullmatch(bare)
    return worded[1].strip() if worded else bare


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _named(text: str, names: deque[re.Match[str]]) -> tuple[Answer | None, Answer | None]:
    """Return what the last label marks, and what is last said to be the answer behind it."""
    said = None
    for name in reversed(names):
        label = _LABEL.match(text, name.end())
        before = label and _BEFORE.search(text, max(name.start() - _BEFORE_CHARS, 0), name.start())
        if label and before and (label["newline"] is None or before["line"] is not None):
            return Answer(bare(_after(text, label.end())), before.start(), "mark"), None
        if said is None and (match := _SAID.match(text, name.end())):
            said = Answer(bare(_line(text, match.end())), name.start(), "said")
    return None, said


def _line(text: str, start: int) -> str:
    return text[start:].partition("\n")[0]


def _after(text: str, start: int) -> str:
    """Return the line that begins at `start`, or the whole of the list, fence or formula that begins there."""
    block = _BLOCK.match(text, start)
    return block[block.lastgroup or 0] if block else _line(text, start)


def _value(text: str, start: int) -> str:
    """Return the JSON value at `start` as text, or the line there if it is none."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return _line(text, start)
    return value if isinstance(value, str) else text[start:end]


def _boxed(text: str, label: int) -> Iterator[Answer]:
    """Yield the box that closes last, with those that it is joined to, unless it is a step."""
    boxes: deque[tuple[int, int, int]] = deque(maxlen=9)
    opened: list[re.Match[str] | None] = []
    for brace in _BRACES.finditer(text):
        kind = brace[0]
        if kind == "{":
            opened.append(None)
        elif kind.startswith("\\") and len(kind) > 2:
            opened.append(brace)
        elif kind == "}" and opened and (opening := opened.pop()):
            boxes.append((opening.start(), opening.end(), brace.start()))
    if not boxes:
        return
    begin, start, end = boxes.pop()
    is_step = _REASON.search(text, max(begin - 200, label), begin) or _GOES_ON.match(text, end + 1)
    if begin > label and is_step:
        return
    content = bare(text[start:end])
    while boxes and _JOINT.fullmatch(text, boxes[-1][2] + 1, begin):
        begin, start, end = boxes.pop()
        content = f"{bare(text[start:end])}, {content}"
    yield Answer(content, begin, "mark")
