"""What an adapter on fused experts costs and learns: `python -m benchmarks.expert_adapters [--kinds K ...]`.

A small mixture of experts (64 wide, four layers, 16 experts of which a token goes to four) learns one table of which
token follows two others, with all its weights, and then another table with an adapter on linear layers (`all-linear`:
attention alone), one on linear layers and experts, or with all weights again. Each side has the better of two learning
rates. A tenth of the tokens is random: no model has a loss below 0.62.

Measured
    200 steps of 16 rows of 128 tokens in float32, one thread, one run, other work on the machine: parameters trained,
    memory beyond the weights (the trainer's estimate), CPU time of a step, loss at the end.
        qwen3_moe   all-linear, rank 8     14,336    63 MiB   140 ms   1.08
                    all-linear, rank 64   114,688    73 MiB   153 ms   0.86
                    and experts, rank 8   178,176    89 MiB   159 ms   0.65
                    all weights           843,456   104 MiB   153 ms   0.63
        mixtral     all-linear, rank 8     14,336    59 MiB   133 ms   1.08
                    all-linear, rank 64   114,688    69 MiB   153 ms   0.84
                    and experts, rank 8   178,176    85 MiB   159 ms   0.64
                    all weights           843,328    96 MiB   140 ms   0.62
        gpt_oss     all-linear, rank 8     14,336   121 MiB   162 ms   0.99
                    all-linear, rank 64   114,688   131 MiB   166 ms   0.78
                    and experts, rank 8   178,176   146 MiB   185 ms   0.65
                    all weights           856,464   159 MiB   174 ms   0.62
"""

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.frame.rounds import argument_parser, measured, publish, spread
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import Divergence, StudentConfig, TrainerConfig
from stillhouse.training.head.scores import ScoreName, TokenLosses, TokenScores
from stillhouse.training.loop.optimizer import build_optimizer
from stillhouse.training.loop.passes import Passes
from stillhouse.training.losses import cross_entropy
from stillhouse.training.model.adapters import new_adapter
from stillhouse.training.model.memory import estimate_memory
from stillhouse.training.model.student import Student
from stillhouse.training.ranks import Ranks
from stillhouse.types import Sample

_KINDS: Final = ("qwen3_moe", "mixtral", "gpt_oss")
_ADAPTERS: Final[Mapping[str, Mapping[str, Any] | None]] = {
    "all-linear, rank 8": {"lora_rank": 8},
    "all-linear, rank 64": {"lora_rank": 64},
    "and experts, rank 8": {"lora_rank": 8, "lora_targets": ["all-linear", "experts"]},
    "all weights": None,
}
_VOCABULARY: Final = 24
_RANDOM_SHARE: Final = 0.1
_ROWS, _LENGTH = 16, 128
_RATES: Final = (1e-3, 5e-3)
_CPU: Final = torch.device("cpu")


class Likelihood:
    """Cross-entropy of all tokens but the first two."""

    temperature = divergence_temperature = 1.0
    uses_dropout = True
    wants: frozenset[ScoreName] = frozenset()
    divergence: tuple[Divergence, ...] = ()

    def partition(self, sample: Sample) -> str:
        return ""

    def reference(self, samples: object) -> None:
        return None

    def token_values(self, sample: Sample) -> Mapping[str, list[float]]:
        """None."""
        return {}

    def loss(self, scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        return TokenLosses(cross_entropy(scores.logprobs_N))


@dataclass(frozen=True, slots=True)
class Learnt:
    """One training."""

    trained_parameters: int
    memory_mib: float
    """Estimated, beyond the weights, of microbatches of 2,048 tokens without checkpointing."""
    step_s: float
    """Processor time: the median of the steps."""
    loss: float
    """Mean of the last ten steps."""


def rows(seed: int, step: int) -> list[Sample]:
    """The rows of a step, by the table of `seed`."""
    table = torch.randint(_VOCABULARY, (_VOCABULARY, _VOCABULARY), generator=torch.Generator().manual_seed(seed))
    draws = torch.Generator().manual_seed(step)
    tokens = torch.randint(_VOCABULARY, (_ROWS, _LENGTH), generator=draws)
    is_random = torch.rand((_ROWS, _LENGTH), generator=draws) < _RANDOM_SHARE
    for place in range(2, _LENGTH):
        follows = table[tokens[:, place - 2], tokens[:, place - 1]]
        tokens[:, place] = torch.where(is_random[:, place], tokens[:, place], follows)
    mask = [False, False] + [True] * (_LENGTH - 2)
    return [Sample(row, mask, "row") for row in tokens.tolist()]


def trained(student: Student, table: int, num_steps: int, rate: float) -> Learnt:
    """Trains the student, in place."""
    config = TrainerConfig(learning_rate=rate)
    passes, optimizer = Passes(student, Ranks.single(_CPU), config), build_optimizer(student, config)
    losses: list[float] = []

    def step() -> None:
        losses.append(passes.backward(rows(table, len(losses)), Likelihood()).loss)
        optimizer.step()
        optimizer.zero_grad()

    for group in optimizer.param_groups:
        group["lr"] = rate
    costs = [measured(step).cpu_s for _ in range(num_steps)]
    memory = estimate_memory(student, config, _ROWS * _LENGTH, checkpointed=False).total
    size = sum(p.numel() for _, p in student.trained_parameters())
    return Learnt(size, memory / 2**20, spread(costs).median, fmean(losses[-10:]))


def student(causal_lm: PreTrainedModel, adapter: Mapping[str, Any] | None) -> Student:
    model: Any = causal_lm
    if adapter is not None:
        model = new_adapter(causal_lm, StudentConfig.model_validate(adapter), seed=0)
    return Student(model, causal_lm, load_tokenizer("embedded:student"), "tables")


def first_trained(kind: str, num_steps: int) -> PreTrainedModel:
    """A model that knows the first table."""
    torch.manual_seed(0)
    sizes = {"vocab_size": _VOCABULARY, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 4}
    experts = {"num_experts": 16, "num_local_experts": 16, "num_experts_per_tok": 4, "max_position_embeddings": 512}
    tokens = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    config = AutoConfig.for_model(kind, **sizes, **heads, **experts, **tokens)
    causal_lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    trained(student(causal_lm, None), 0, num_steps, _RATES[0])
    return causal_lm


def main() -> None:
    """See the module's docstring."""
    parser = argument_parser(__doc__)
    parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=_KINDS)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines: list[str] = []
    figures: dict[str, Any] = {}
    for kind in options.kinds:
        base = first_trained(kind, options.steps)
        for side, adapter in _ADAPTERS.items():
            runs = [trained(student(copy.deepcopy(base), adapter), 1, options.steps, rate) for rate in _RATES]
            best = min(runs, key=lambda run: run.loss)
            figures[f"{kind}, {side}"] = asdict(best)
            lines.append(
                f"{kind:10} {side:20} {best.trained_parameters:8,} trained, {best.memory_mib:6.1f} MiB, "
                f"{best.step_s * 1e3:5.0f} ms of CPU a step, loss {best.loss:.3f}"
            )
    publish(lines, figures, options.json)


if __name__ == "__main__":
    main()
