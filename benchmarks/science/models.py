"""The models of the task "chain": one small architecture, trained from nothing for each seed."""

import itertools
import random
from pathlib import Path
from typing import Final

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.chat_template_utils import render_jinja_template

from benchmarks.science.tasks.chain import draw_chains
from stillhouse.embedded import embedded_path
from stillhouse.embedded.tokenizer import train_tokenizer
from stillhouse.store.atomic import replaced_folder

_NUM_TOKENIZER_ROWS: Final = 500
_MAX_POSITIONS: Final = 128


def write_new_model(folder: Path, seed: int) -> Path:
    """A folder with random weights and the tokenizer, made if it is not there."""
    if not folder.is_dir():
        tokenizer = _tokenizer()
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(_config(tokenizer))
        with replaced_folder(folder) as work:
            model.save_pretrained(work)
            tokenizer.save_pretrained(work)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    """One token for each digit and each letter of a chain, and the bytes for everything else."""
    template = (embedded_path("student") / "chat_template.jinja").read_text(encoding="utf-8")
    rng = random.Random(0)
    rows = [chain.row(rng) for chain in itertools.islice(draw_chains(rng), _NUM_TOKENIZER_ROWS)]
    texts, _ = render_jinja_template(
        conversations=[row["messages"] for row in rows], tools=None, chat_template=template
    )
    return train_tokenizer(texts, template)


def _config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=_MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
