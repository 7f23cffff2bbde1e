from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from stillhouse.chat.tokenizer import load_tokenizer

SPACE = "\u2581"
# As Llama 3 and Qwen split words: a run of line breaks is one piece whatever follows it.
WORDS = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
MERGES = [("a", "n"), ("t", "h"), ("th", "e"), ("1", "0"), ('"', ":")]
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_MARKUP = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
LLAMA = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
GEMMA = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
MISTRAL = [
    "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
]  # fmt: skip


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer("embedded:student")


@pytest.fixture(scope="session")
def speaking() -> Callable[[str], PreTrainedTokenizerBase]:
    """The student's tokenizer with another chat template, or with the one of a file in `templates`."""

    def make(template: str) -> PreTrainedTokenizerBase:
        tokenizer = load_tokenizer("embedded:student")
        tokenizer.chat_template = template if "{" in template else _template(template)
        return tokenizer

    return make


@pytest.fixture(scope="session")
def family() -> Callable[[str], PreTrainedTokenizerBase]:
    """A small tokenizer in the form of a family of models, with its special tokens and form of chat template."""
    made = {
        "qwen3": _with_template("qwen3", _byte_level(QWEN, QWEN_MARKUP), eos_token="<|im_end|>"),
        "llama3": _with_template("llama3", _byte_level(LLAMA), bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"),
        "gemma": _with_template("gemma", _gemma(), bos_token="<bos>", eos_token="<eos>"),
        "mistral": _with_template("mistral", _mistral(), bos_token="<s>", eos_token="</s>"),
    }
    return made.__getitem__


@pytest.fixture(scope="session")
def byte_level() -> Callable[..., PreTrainedTokenizerBase]:
    """Makes a small tokenizer of bytes with special tokens, of which one is the end token, and others for markup."""

    def make(
        special: Sequence[str], eos_token: str, markup: Sequence[str] = (), **named: str
    ) -> PreTrainedTokenizerBase:
        return PreTrainedTokenizerFast(tokenizer_object=_byte_level(special, markup), eos_token=eos_token, **named)

    return make


def _with_template(name: str, backend: Tokenizer, **special: str) -> PreTrainedTokenizerBase:
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    tokenizer.chat_template = _template(name)
    return tokenizer


def _template(name: str) -> str:
    return (Path(__file__).parent / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def _byte_level(special: Sequence[str], markup: Sequence[str] = ()) -> Tokenizer:
    backend = Tokenizer(_bpe(sorted(pre_tokenizers.ByteLevel.alphabet()), [("\u0120", "a"), ("\u010a", "\u010a")]))
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(WORDS, "isolated"), to_bytes])
    backend.decoder = decoders.ByteLevel()
    return _with_added(backend, special, markup)


def _gemma() -> Tokenizer:
    """Spaces become a letter, unknown letters become bytes, nothing is put before a text."""
    backend = Tokenizer(_sentencepiece())
    backend.normalizer = normalizers.Replace(" ", SPACE)
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return _with_added(backend, GEMMA)


def _mistral() -> Tokenizer:
    """As Gemma's, but a text begins with a space that is not in it."""
    backend = Tokenizer(_sentencepiece())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    strip = decoders.Strip(" ", 1, 0)
    decoder = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    backend.decoder = decoders.Sequence(decoder)
    return _with_added(backend, MISTRAL)


def _sentencepiece() -> models.BPE:
    letters = [f"<0x{byte:02X}>" for byte in range(256)] + [chr(code) for code in range(33, 127)] + [SPACE]
    return _bpe(letters, [(SPACE, "a"), (SPACE, "the")], byte_fallback=True)


def _bpe(letters: Sequence[str], merges: Sequence[tuple[str, str]], **options: bool) -> models.BPE:
    merges = [*MERGES, *merges]
    pieces = dict.fromkeys([*letters, *("".join(pair) for pair in merges)])
    return models.BPE({piece: number for number, piece in enumerate(pieces)}, merges, **options)


def _with_added(backend: Tokenizer, special: Sequence[str], markup: Sequence[str] = ()) -> Tokenizer:
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, normalized=False) for token in markup])
    return backend
