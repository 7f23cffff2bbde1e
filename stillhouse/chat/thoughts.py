"""Thinking that a model wrote into its text, apart from the answer behind it.

An endpoint without the parser of its model leaves the thinking in the text, between the tags of the model's family.
Only what the text begins with counts: a text may speak of the tags.
"""

import re
from typing import Final, NamedTuple

_ASKED_FOR: Final = ("thinking", "thought")
"""Tags that prompts ask for and no tokenizer has: unclosed, they are a word of the text."""
_CLOSING: Final = {
    # Most families; Seed-OSS; MiniMax M3; LongCat.
    **{f"<{tag}>": f"</{tag}>" for tag in ("think", "seed:think", "mm:think", "longcat_think", *_ASKED_FOR)},
    "[THINK]": "[/THINK]",  # Magistral
    "\u25c1think\u25b7": "\u25c1/think\u25b7",  # Kimi-VL
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command R7B, Command A
    "<|channel>thought": "<channel|>",  # Gemma 4
    "<|inner_prefix|>": "<|inner_suffix|>",  # Apertus
    "<|begin_of_thought|>": "<|end_of_thought|>",  # OpenThinker, Sky-T1
    "<unused94>thought": "<unused95>",  # MedGemma
}
_OPEN: Final = re.compile(rf"\s*({'|'.join(map(re.escape, _CLOSING))})")
_THINK: Final = "<think>"
_QUOTES: Final = "`'\""
_CHANNEL: Final = re.compile(
    r"\s*(?:<\|start\|>assistant)?<\|channel\|>(analysis|commentary|final)<\|message\|>"
    r"(.*?)(?:<\|end\|>|<\|return\|>|\Z)\s*",
    re.DOTALL,
)
"""A message of gpt-oss (https://developers.openai.com/cookbook/articles/openai-harmony)."""
_CHANNELS_AS_WORDS: Final = re.compile(r"\s*analysis(.*?)assistantfinal(.*)", re.DOTALL)
"""The same without its special tokens, as decoders that skip them leave it."""
_END_TOKENS: Final = re.compile(
    r"(?<![ `'\"])(?:<\|(?:im_end|eot_id|eom_id|end|return|endoftext|end_of_text)\|>|<end_of_turn>"
    r"|<\uff5cend\u2581of\u2581sentence\uff5c>)+\s*\Z"
)


class Thoughts(NamedTuple):
    """A text in two parts; neither holds the tags."""

    reasoning: str
    answer: str
    """The whole text where it does not begin with thinking; empty where the thinking does not end."""
    in_channels: bool = False
    """True where the text has the channels of gpt-oss, whose template refuses to be given them back."""


def split_thoughts(text: str) -> Thoughts:
    """Return the thinking that a text begins with, and the rest.

    `<think>` itself may be missing, since some chat templates write it into the prompt.
    """
    if channels := _split_channels(text):
        return channels
    thoughts: list[str] = []
    end = _find(_CLOSING[_THINK], text, 0)
    is_opened = end < 0 or _THINK in text[:end] or _OPEN.match(text)
    rest = text if is_opened else _THINK + text
    while opened := _OPEN.match(rest):
        closing = _CLOSING[opened[1]]
        end = _find(closing, rest, opened.end())
        if end < 0 and opened[1].strip("<>") in _ASKED_FOR:
            break
        end = end if end >= 0 else len(rest)
        thoughts.append(rest[opened.end() : end])
        rest = rest[end + len(closing) :]
    if not thoughts:
        return Thoughts("", text)
    reasoning = "\n\n".join(stripped for thought in thoughts if (stripped := thought.strip("\n")).strip())
    return Thoughts(reasoning, rest.lstrip("\n"))


def without_end_tokens(text: str) -> str:
    """Return the text without the special tokens that end a turn, which an endpoint should have cut."""
    return _END_TOKENS.sub("", text)


def _split_channels(text: str) -> Thoughts | None:
    if words := _CHANNELS_AS_WORDS.fullmatch(text):
        return Thoughts(words[1].strip("\n"), words[2].lstrip("\n"), in_channels=True)
    messages = list(_CHANNEL.finditer(text)) if "<|channel|>" in text else []
    if not messages or "".join(message[0] for message in messages) != text:
        return None
    channels = {message[1] for message in messages}
    if "commentary" in channels and "final" not in channels:
        # A call that the endpoint did not read.
        return None
    thoughts = [message[2] for message in messages if message[1] == "analysis"]
    answers = [message[2] for message in messages if message[1] != "analysis"]
    return Thoughts("\n\n".join(thoughts), "\n\n".join(answers), in_channels=True)


def _find(tag: str, text: str, start: int) -> int:
    """Return the index of the first `tag` from `start` that does not stand between quotes; -1 without one."""
    place = text.find(tag, start)
    while place > 0 and text[place - 1] in _QUOTES and text[place + len(tag) :].startswith(text[place - 1]):
        place = text.find(tag, place + len(tag))
    return place
