"""Models of Qwen3's shapes with random weights, made on the device."""

from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.gpu.bench import Bench
from benchmarks.sft.workload import SHAPES, Shape, word_tokenizer
from stillhouse.config import StudentConfig
from stillhouse.training.model.adapters import new_adapter
from stillhouse.training.model.student import Student

LORA_RANK: Final = 32
VOCABULARY: Final = 151_936
_QWEN3: Final = {
    "0.6B": Shape(1024, 28, 16, 8, 3072, VOCABULARY),
    "1.7B": Shape(2048, 28, 16, 8, 6144, VOCABULARY),
    "8B": Shape(4096, 36, 32, 8, 12288, VOCABULARY, tied=False),
}


@dataclass(frozen=True, slots=True)
class Built:
    """A causal language model, and what is trained: itself, or peft's wrapper of it."""

    model: Any
    causal_lm: PreTrainedModel

    def student(self, bench: Bench) -> Student:
        """For our trainer, computing in bfloat16."""
        tokenizer = word_tokenizer(self.causal_lm.config.vocab_size)
        return Student(self.model.eval(), self.causal_lm, tokenizer, "random", torch.bfloat16)


def shape_of(size: str, bench: Bench) -> Shape:
    """Shape of a size, or of the tiny model that takes its place in a rehearsal."""
    return SHAPES["tiny"] if bench.tiny else _QWEN3[size]


def build(
    shape: Shape,
    bench: Bench,
    *,
    parameters: Literal["full", "lora", "frozen"],
    model_class: Any = AutoModelForCausalLM,
    seed: int = 0,
) -> Built:
    """A model with random weights: float32 where all are trained, else bfloat16, with an adapter for `lora`."""
    torch.manual_seed(seed)
    dtype = torch.float32 if parameters == "full" else torch.bfloat16
    from_config = getattr(model_class, "from_config", None) or model_class._from_config
    with torch.device(bench.device):
        causal_lm = from_config(shape.config(), dtype=dtype)
    if parameters == "full":
        return Built(causal_lm, causal_lm)
    if parameters == "frozen":
        return Built(causal_lm.requires_grad_(False).eval(), causal_lm)
    adapter = StudentConfig(lora_rank=LORA_RANK, lora_alpha=2.0 * LORA_RANK)
    return Built(new_adapter(causal_lm, adapter, seed=seed), causal_lm)
