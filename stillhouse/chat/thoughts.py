"""Thinking that a model wrote into its text, apart from the answer behind it.

An endpoint without the parser of its model leaves the thinking in the text, between the tags of the model's family.
Only what the text begins with counts: a text may speak of the tags.
"""

import re
from typing import Final, NamedTuple

_CLOSING: Final = {
    "<think>": "</think>",  # DeepSeek-R1, Qwen3, GLM, Kimi K2, MiniMax M2 and most others
    "[THINK]": "[/THINK]",  # Magistral
    "<seed:think>": "</seed:think>",  # Seed-OSS
    "<mm:think>": "</mm:think>",  # MiniMax M3
    "<longcat_think>": "</longcat_think>",  # LongCat
    "\u25c1think\u25b7": "\u25c1/think\u25b7",  # Kimi-VL
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command R7B, Command A
    "<|channel>thought": "<channel|>",  # Gemma 4
    "<|inner_prefix|>": "<|inner_suffix|>",  # Apertus
    "<|begin_of_thought|>": "<|end_of_thought|>",  # OpenThinker, Sky-T1
    "<unused94>thought": "<unused95>",  # MedGemma
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
}
_PLAIN: Final = frozenset({"<thinking>", "<thought>"})
"""Tags that prompts ask for and no tokenizer has: unclosed, they are a word of the text."""
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
    """Whether the text has the channels of gpt-oss, whose template refuses to be given them back."""


def split_thoughts(text: str) -> Thoughts:
    """The thinking that a text begins with, and the rest.

    `<think>` itself may be missing, since some chat templates write it into the prompt.
    """
    if channels := _split_channels(text):
        return channels
    thoughts: list[str] = []
    rest = text
    while opened := _OPEN.match(rest):
        end = _find(_CLOSING[opened[1]], rest, opened.end())
        if end < 0 and opened[1] in _PLAIN:
            break
        thoughts.append(rest[opened.end() : end if end >= 0 else None])
        rest = rest[end + len(_CLOSING[opened[1]]) :] if end >= 0 else ""
    closing = _CLOSING[_THINK]
    if not thoughts and (end := _find(closing, rest, 0)) >= 0 and _THINK not in rest[:end]:
        again = split_thoughts(rest[end + len(closing) :])
        thoughts, rest = [rest[:end], again.reasoning], again.answer
    if not thoughts:
        return Thoughts("", text)
    reasoning = "\n\n".join(stripped for thought in thoughts if (stripped := thought.strip("\n")).strip())
    return Thoughts(reasoning, rest.lstrip("\n"))


def without_end_tokens(text: str) -> str:
    """The text without the special tokens that end a turn, which an endpoint should have cut."""
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
    """Index of the first `tag` from `start` that does not stand between quotes; -1 without one."""
    place = text.find(tag, start)
    while place > 0 and text[place - 1] in _QUOTES and text[place + len(tag) :].startswith(text[place - 1]):
        place = text.find(tag, place + len(tag))
    return place
