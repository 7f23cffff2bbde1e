"""Multiple choice: the option that the answer chooses."""

import re
from collections.abc import Iterable, Mapping
from string import ascii_uppercase
from typing import Any, Final

import orjson

from stillhouse.types import PromptMetadata
from stillhouse.verification.answers import Answer, expected_answer, read_answer
from stillhouse.verification.result import VerificationResult, expected_text
from stillhouse.verification.text import normalised_text, plain, whole_words

_OPTION_KEYS: Final = ("options", "choices")
_NAMED: Final = r"(?:option|choice|answer)\s+"
# A letter that is set apart: "(B)", "**B**", "B)", "B.", "B:", or alone on its line.
_SET_APART: Final = re.compile(
    rf"(?im:(?:{_NAMED})?)(?:\((?P<round>[A-Za-z])\)|\[(?P<square>[A-Z])\]|\*\*\(?(?P<bold>[A-Z])\b(?:[).:][^\n*]*)?\*\*"
    r"|(?m:^[ \t>*_-]*(?P<line>[A-Z])(?:[).:](?=\s|\Z|[*_])|[ \t*_]*$)))"
)
_NAMED_LETTER: Final = re.compile(rf"(?i:\b{_NAMED})(?P<letter>[A-Z])\b(?!['\u2019])")
_CHOSEN: Final = re.compile(
    rf"(?i:\b(?:choose|pick|select|go(?:ing)? with|(?:correct|right|best) (?:option|choice|one) is)\s+(?:{_NAMED})?)"
    r"\W*(?P<after>[A-Z])\b(?!['\u2019])"
    r"|(?i:\bit(?:['\u2019]| i)s) (?P<it>[A-Z])(?=[.,;!*)]|\Z)"
    r"|\b(?P<before>[A-Z])[)*\]]*\s+is\s+(?:the\s+)?(?:correct|right|best)\b"
)
_LEADING: Final = re.compile(
    rf"\W*(?:(?i:{_NAMED})\W*)?(?P<letter>[A-Za-z])(?P<rest>(?:\W|[^\x00-\u024f]).*|)\Z", re.DOTALL
)
_SEVERAL: Final = re.compile(
    r"\W*(?:(?i:options?|choices?)\s+)?[A-Z]\W*(?:[,/&+]|\b(?:and|or|und|oder|et|ou|y|o|e)\b)\W*[A-Z](?:\W*\Z|\W+[A-Z]\b)"
)
_SENTENCE: Final = re.compile(r"\n|(?<=[.?!;])\s")
_ALONE: Final = re.compile(rf"\A\W*(?:(?i:{_NAMED}))?([A-Za-z])\W*\Z")
_RULED_OUT: Final = re.compile(
    rf"(?i:\b(?:not|neither|nor|eliminat\w+|rul\w+ out|reject\w*|exclud\w+)|n't)\W+(?:(?i:be|{_NAMED})\s*)?\W*"
    r"(?P<after>[A-Z])\b"
    r"|\b(?P<before>[A-Z])[)*\]]*\s+(?:is|was)\s+(?:wrong|incorrect|false|out|not|tempting)\b"
)
_NEGATED: Final = re.compile(r"\b(?:not|neither|none|never|nicht|weder|pas|no|non)\b|n't|不", re.IGNORECASE)
_REASON: Final = re.compile(r"\s+(?:because|since|as|for|is)\b", re.IGNORECASE)


def choice(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Compare the option that the answer chooses with the expected one.

    The expected answer is a letter, the text of an option, or an index from 0; without options a letter. Options are
    `metadata["options"]` or `metadata["choices"]`: texts in a list or by letter, or the lists `label` and `text`.

    A final answer chooses the letter or the option's text that it begins with, or the only one that it names; of
    several letters (`A or B`) none. In a whole text it is the last one called correct or chosen, else the last letter
    set apart, as in `(B)`, `**B**`, `B) Paris` or `option B`, else the only option whose text occurs.
    """
    try:
        options = _options(metadata)
    except ValueError as error:
        return VerificationResult(None, str(error))
    expected = _expected_letter(expected_answer(expected_text(metadata)), options)
    if expected is None:
        note = f"the expected answer {expected_text(metadata)[:80]!r} is no letter and no option's text"
        return VerificationResult(None, note)
    chosen = _chosen(read_answer(answer), options)
    if chosen == expected:
        return VerificationResult(True, compared=chosen)
    note = f"chose {chosen}" if chosen else "the answer commits itself to no option"
    return VerificationResult(False, note, chosen)


def _chosen(answer: Answer, options: Mapping[str, str]) -> str | None:
    text = plain(answer.text)
    exactly = _option_named(text, options, exact=True)
    if answer.kind == "whole":
        # What is ruled out is no choice: without its letter.
        text = _RULED_OUT.sub(" ", text)
        sentences = _SENTENCE.split(text.strip())
        letter = (
            exactly
            or _last_letter(text, (_CHOSEN,), options)
            or _last_letter(sentences[-1], (_ALONE,), options)
            or _last_letter(sentences[0], (_ALONE,), options)
            or _last_letter(text, (_SET_APART, _NAMED_LETTER), options)
            or _leading_letter(text, options)
        )
    elif _SEVERAL.match(text):
        return exactly
    else:
        letter = _leading_letter(text, options) or exactly
        if letter is None and not _NEGATED.search(text):
            letter = _last_letter(text, (_SET_APART, _NAMED_LETTER), options)
    return letter or _option_named(text, options, exact=False)


def _leading_letter(text: str, options: Mapping[str, str]) -> str | None:
    """Return the letter that a text consists of, or begins with as a label."""
    match = _LEADING.match(text)
    if match is None:
        return None
    letter, rest = match["letter"], match["rest"]
    is_alone = not rest.strip(" \t\n.*_)]}$:'\"")
    # `A cat` and `I think` begin with words.
    is_letter = letter not in "AI" or rest[:1] != " " or _REASON.match(rest)
    is_label = is_alone or rest[0] in ")." or (letter.isupper() and is_letter)
    is_its_text = normalised_text(rest) == normalised_text(options.get(letter, "\0"))
    return _known(letter, options) if is_label or is_its_text else None


def _last_letter(text: str, patterns: Iterable[re.Pattern[str]], options: Mapping[str, str]) -> str | None:
    matches = [match for pattern in patterns for match in pattern.finditer(text)]
    last_first = sorted(matches, key=re.Match.end, reverse=True)
    letters = (_known(next(filter(None, match.groups())), options) for match in last_first)
    return next(filter(None, letters), None)


def _option_named(text: str, options: Mapping[str, str], *, exact: bool) -> str | None:
    """Return the option whose text this is or, if not `exact`, the only one whose text it contains."""
    if not options:
        return None
    written = normalised_text(text)
    texts = [(letter, normalised_text(option)) for letter, option in options.items()]
    named = [letter for letter, text in texts if (text == written if exact else whole_words(text).search(written))]
    return named[0] if len(named) == 1 else None


def _known(letter: str, options: Mapping[str, str]) -> str | None:
    letter = letter.upper()
    return letter if not options or letter in options else None


def _expected_letter(expected: str, options: Mapping[str, str]) -> str | None:
    index = expected.strip()
    letter = _option_named(expected, options, exact=True)
    if letter is None and index.isdecimal() and int(index) < len(options):
        return list(options)[int(index)]
    return letter or _leading_letter(expected, options)


def _options(metadata: PromptMetadata) -> dict[str, str]:
    """Return the options' texts by letter, empty if the prompt has none; raise ValueError for another form."""
    value = next((metadata.metadata[key] for key in _OPTION_KEYS if metadata.metadata.get(key)), None)
    if isinstance(value, str):
        # A column of text holds JSON as text.
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise ValueError(f"expected metadata.options to be JSON, saw {value[:80]!r}") from None
    if value is None:
        return {}
    options = _labelled(value)
    if options is None or len(options) > len(ascii_uppercase):
        raise ValueError(f"expected metadata.options to be texts in a list or by letter, saw {str(value)[:80]}")
    return options


def _labelled(value: Any) -> dict[str, str] | None:
    """Return texts by letter, without labels such as `A)`."""
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        labels, texts = value.get("label"), value["text"]
        value = dict(zip(map(str, labels), texts, strict=False)) if isinstance(labels, list) else texts
    if isinstance(value, list) and all(isinstance(option, str | int | float) for option in value):
        options = dict(zip(ascii_uppercase, map(str, value), strict=False))
        labelled = {
            letter: match[1]
            for letter, text in options.items()
            if (match := re.match(rf"\s*\(?{letter}[).:]\s+(.+)", text, re.DOTALL))
        }
        return labelled if len(labelled) == len(options) else options
    if isinstance(value, dict) and all(len(key) == 1 and key.isalpha() for key in value):
        return {key.upper(): str(option) for key, option in value.items()}
    return None
