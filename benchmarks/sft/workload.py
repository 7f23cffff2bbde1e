"""What both sides train: a model with random weights, its tokenizer, and conversations of very different lengths.

One word is one token, so that a conversation has exactly the length drawn for it. Words follow Zipf's law, as those of
a language do: a vocabulary of which most entries never come would be another problem.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.pre_tokenizers import Split
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

from stillhouse.embedded import embedded_path

MAX_TOKENS: Final = 1024
"""Longest conversation."""
MEAN_TOKENS: Final = 291
"""Of a conversation."""
_MEDIAN_TOKENS: Final = 250
_SIGMA: Final = 0.6
_MIN_TOKENS: Final = 40
_SPECIALS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WORDS: Final = ("[UNK]", "\n", "system", "user", "assistant")
FIRST_WORD_ID: Final = len(_SPECIALS) + len(_WORDS)
"""Token id of `w0`, which `w1` and so on follow."""
_TOKENS_OF_A_TURN: Final = 4
"""`<|im_start|>`, the role, a newline before the text, `<|im_end|>`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3 model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int = 32_000
    head_dim: int = 128
    tied: bool = True
    """Whether the embedding is the output layer, too."""

    def config(self) -> Qwen3Config:
        """For transformers."""
        return Qwen3Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            intermediate_size=self.intermediate,
            head_dim=self.head_dim,
            max_position_embeddings=40_960,
            tie_word_embeddings=self.tied,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )


SHAPES: Final = {
    "tiny": Shape(hidden=32, layers=2, heads=2, kv_heads=1, intermediate=64, vocabulary=512, head_dim=16),
    "narrow": Shape(hidden=128, layers=4, heads=4, kv_heads=2, intermediate=384, vocabulary=4_000, head_dim=32),
    "small": Shape(hidden=256, layers=4, heads=4, kv_heads=2, intermediate=768, head_dim=64),
    "middle": Shape(hidden=512, layers=8, heads=8, kv_heads=4, intermediate=1536, head_dim=64),
    "large": Shape(hidden=1024, layers=6, heads=16, kv_heads=8, intermediate=3072),
}
"""The output layer's share of a token's arithmetic falls from `small` to `large`, whose blocks are Qwen3-0.6B's, in
such number that the share is that model's, too."""


def write_workload(folder: Path, shape: Shape, num_rows: int, seed: int = 0) -> None:
    """Writes the model with its tokenizer to `folder/model`, and `num_rows` conversations to `folder/rows.jsonl`."""
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(shape.config(), dtype=torch.float32).save_pretrained(folder / "model")
    word_tokenizer(shape.vocabulary).save_pretrained(folder / "model")
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for row in conversations(num_rows, shape.vocabulary, seed):
            file.write(json.dumps(row) + "\n")
    (folder / "shape.json").write_text(json.dumps(asdict(shape)) + "\n", encoding="utf-8")


def conversations(num_rows: int, vocabulary: int, seed: int) -> Iterator[dict[str, Any]]:
    """Conversations of one to four exchanges, log-normally long, of which the assistant says about half."""
    generator = np.random.default_rng(seed)
    words = vocabulary - FIRST_WORD_ID
    frequencies = 1.0 / np.arange(1, words + 1)
    frequencies /= frequencies.sum()
    for number in range(num_rows):
        length = int(np.clip(generator.lognormal(np.log(_MEDIAN_TOKENS), _SIGMA), _MIN_TOKENS, MAX_TOKENS))
        num_turns = 2 * int(generator.integers(1, 5)) if length >= 4 * _MIN_TOKENS else 2
        free = length - num_turns * (_TOKENS_OF_A_TURN + 1)
        shares = generator.dirichlet(np.full(num_turns, 4.0))
        counts = np.maximum(1, np.floor(shares * free)).astype(int)
        messages = [
            {
                "role": "assistant" if turn % 2 else "user",
                "content": " ".join(f"w{word}" for word in generator.choice(words, size=count, p=frequencies)),
            }
            for turn, count in enumerate(counts)
        ]
        yield {"prompt_id": f"row-{number}", "messages": messages, "tools": []}


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer with a token for each of the words `w0`, `w1` and so on, and a chat template."""
    names = [*_SPECIALS, *_WORDS]
    names += [f"w{number}" for number in range(vocabulary - len(names))]
    tokenizer = Tokenizer(WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = PreTokenizers([Split(Regex(" +"), "removed"), Split("\n", "isolated")])
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in _SPECIALS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=MAX_TOKENS,
        chat_template=(embedded_path("student") / "chat_template.jinja").read_text(encoding="utf-8"),
    )
