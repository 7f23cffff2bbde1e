"""Supervised fine-tuning: the student learns to say what the teacher said.

A batch is the next rows of the dataset, the loss is the cross-entropy of every assistant token (answers, reasoning and
tool calls with their end-of-turn token; prompts and tool output are only read).
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.samples import render_samples
from stillhouse.chat.template import TemplateError
from stillhouse.config import SftConfig
from stillhouse.dataset.read import read_rows
from stillhouse.errors import InputError
from stillhouse.training.batching.order import num_stream_steps, stream_rows
from stillhouse.training.head.scores import ScoreName, TokenScores
from stillhouse.training.losses import cross_entropy
from stillhouse.training.method import Batch, TokenLosses
from stillhouse.types import JsonObject, Sample


class Sft:
    """The method `sft`.

    Args:
        train: samples to learn from, at least one.
        validation: samples to measure on; may be empty.
        config: epochs and batch size.
    """

    name = "sft"
    headline = ("loss", "token_accuracy")
    guarded = "loss"
    temperature = 1.0
    wants: frozenset[ScoreName] = frozenset()

    def __init__(self, train: Sequence[Sample], validation: Sequence[Sample], config: SftConfig) -> None:
        self.validation = validation
        self._train = train
        self._config = config
        self.num_steps = num_stream_steps(config.batch_size, len(train), config.num_epochs)

    def batch(self, step: int) -> Batch:
        """The rows of `step` in the order of their epoch."""
        rows = stream_rows(step, self._config.batch_size, len(self._train), self._config.num_epochs, self._config.seed)
        return Batch([self._train[row] for row in rows])

    def token_values(self, sample: Sample) -> Mapping[str, Sequence[float]]:
        """Nothing: the tokens say it all."""
        return {}

    def loss(self, scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        """-log p(token), and whether the token is the most probable one."""
        return TokenLosses(cross_entropy(scores.logprobs_N), means={"token_accuracy": scores.is_top_N.float()})


def load_sft(folder: Path, tokenizer: PreTrainedTokenizerBase, config: SftConfig, max_length: int) -> Sft:
    """The method over a dataset artifact; every row is rendered once, with the student's own template.

    Raises:
        InputError: there is no training row, or one cannot be trained on.
    """
    train, validation = (
        samples_from_rows(read_rows(folder, split), tokenizer, max_length, f"{folder}/{split}.parquet")
        for split in ("train", "validation")
    )
    if not train:
        raise InputError(f"{folder}/train.parquet: no row to train on; see rejected.parquet there for the reasons")
    return Sft(train, validation, config)


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
