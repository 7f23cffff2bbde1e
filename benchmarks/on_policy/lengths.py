"""How TRL's side ends completions where their prompts say: a student whose `generate` forces the end token there."""

from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, Qwen3ForCausalLM

from benchmarks.on_policy.workload import wanted_tokens


class EndsAsAsked(LogitsProcessor):
    """Forces the end token where a completion has the tokens that its prompt asks for, and costs nothing elsewhere.

    Args:
        prompt_ids: padded on the left, one row each.
        attention_mask: 1 at what is no padding.
        end_id: the token.
    """

    def __init__(self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor, end_id: int) -> None:
        self._width = prompt_ids.shape[1]
        self._end_id = end_id
        self._rows: dict[int, list[int]] = {}
        for row, (ids, mask) in enumerate(zip(prompt_ids.tolist(), attention_mask.tolist(), strict=True)):
            prompt = [token for token, is_real in zip(ids, mask, strict=True) if is_real]
            self._rows.setdefault(wanted_tokens(prompt), []).append(row)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The logits of the next tokens."""
        rows = self._rows.get(input_ids.shape[1] - self._width + 1)
        if rows is not None:
            scores[rows] = -torch.inf
            scores[rows, self._end_id] = 0.0
        return scores


class StudentThatEnds(Qwen3ForCausalLM):
    """A student whose completions are as long as their prompts ask for."""

    def generate(self, input_ids: Any, attention_mask: Any, generation_config: Any, **rest: Any) -> Any:
        """Samples."""
        ends = EndsAsAsked(input_ids, attention_mask, generation_config.eos_token_id[0])
        return super().generate(
            input_ids,
            attention_mask=attention_mask,
            generation_config=generation_config,
            logits_processor=LogitsProcessorList([ends]),
            **rest,
        )
