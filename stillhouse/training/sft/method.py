"""Supervised fine-tuning: the student learns to say what the teacher said.

A batch is the next rows of the dataset, the loss is the cross-entropy of every assistant token (answers, reasoning and
tool calls with their end-of-turn token; prompts and tool output are only read).
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.samples import render_samples
from stillhouse.chat.template import TemplateError
from stillhouse.config import SftConfig
from stillhouse.dataset.read import read_rows
from stillhouse.errors import InputError
from stillhouse.training.batching.microbatches import Microbatch, collate, num_targets, split_microbatches
from stillhouse.training.batching.order import num_stream_steps, stream_rows
from stillhouse.training.head.scores import Predictions
from stillhouse.training.losses import cross_entropy
from stillhouse.training.method import Batch, TokenLosses
from stillhouse.training.student.student import Student
from stillhouse.types import JsonObject, Sample


class Sft:
    """The method `sft`.

    Args:
        student: what is trained; asked here for validation only.
        train: samples to learn from, at least one.
        validation: samples to measure on; may be empty.
        config: epochs and batch size.
    """

    name = "sft"
    headline = ("loss", "token_accuracy")

    def __init__(
        self, student: Student, train: Sequence[Sample], validation: Sequence[Sample], config: SftConfig
    ) -> None:
        self._student = student
        self._train = train
        self._validation = validation
        self._config = config
        self.num_steps = num_stream_steps(config.batch_size, len(train), config.num_epochs)

    def batch(self, step: int) -> Batch:
        """The rows of `step` in the order of their epoch."""
        rows = stream_rows(step, self._config.batch_size, len(self._train), self._config.num_epochs, self._config.seed)
        return Batch([self._train[row] for row in rows])

    def loss(self, predictions: Predictions, microbatch: Microbatch) -> TokenLosses:
        """-log p(token), and whether the token is the most probable one."""
        scores = predictions.score(microbatch.targets_N)
        return TokenLosses(cross_entropy(scores.logprobs_N), means={"token_accuracy": scores.is_top_N.float()})

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Mean loss per token of the validation rows."""
        if not self._validation:
            return {}
        self._student.model.eval()
        losses = []
        for group in split_microbatches(self._validation, self._config.microbatch_tokens):
            microbatch = collate(group, self._student.device)
            with self._student.precision():
                hidden_NH = self._student.hidden_states(microbatch.inputs_BT).flatten(0, 1)
                predictions = Predictions(hidden_NH.index_select(0, microbatch.positions_N), self._student.head)
                losses.append(self.loss(predictions, microbatch).losses_N.sum().item())
        return {"validation_loss": math.fsum(losses) / num_targets(self._validation)}


def load_sft(folder: Path, student: Student, config: SftConfig, max_length: int) -> Sft:
    """The method over a dataset artifact; every row is rendered once, with the student's own template.

    Raises:
        InputError: there is no training row, or one cannot be trained on.
    """
    train, validation = (
        samples_from_rows(read_rows(folder, split), student.tokenizer, max_length, f"{folder}/{split}.parquet")
        for split in ("train", "validation")
    )
    if not train:
        raise InputError(f"{folder}/train.parquet: no row to train on; see rejected.parquet there for the reasons")
    return Sft(student, train, validation, config)


def samples_from_rows(
    rows: Iterable[JsonObject], tokenizer: PreTrainedTokenizerBase, max_length: int, source: str
) -> list[Sample]:
    """Training samples of dataset rows, in order.

    Raises:
        InputError: a row cannot be rendered, has no supervised token, or is longer than `max_length` tokens.
    """
    samples = []
    for number, row in enumerate(rows):
        prompt_id = row["prompt_id"]
        where = f"{source}, row {number} (prompt {prompt_id})"
        try:
            rendered = render_samples(tokenizer, row["messages"], row["tools"])
        except TemplateError as error:
            raise InputError(f"{where}: cannot be rendered with the student's chat template: {error}") from error
        for token_ids, loss_mask in rendered:
            if not any(loss_mask):
                raise InputError(
                    f"{where}: no supervised token among {len(token_ids)}; expected an assistant message. Drop the row"
                )
            if len(token_ids) > max_length:
                raise InputError(
                    f"{where}: {len(token_ids)} tokens, at most student.max_length = {max_length} expected; build the "
                    "dataset with the same student section"
                )
            samples.append(Sample(token_ids, loss_mask, prompt_id, tag=row.get("tag")))
    return samples
