"""Scores that rows came with: what their teacher found most probable while it wrote them (`rollouts.record_top_k`).

They serve a sample whose learnt tokens, as the student renders them, are those that were sampled: by their ids where
the endpoint gave ids, else by their bytes, which the student's tokenizer may cut the same way. What the student's
template writes around them (its end-of-turn token, which most chat endpoints do not return, or a header that the
teacher's does not have) is then a hard target: all of the mass is on it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, pairwise
from pathlib import Path
from typing import Final

import numpy as np
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.samples import MessageStart
from stillhouse.chat.tokenizer import special_ids
from stillhouse.dataset.recorded import read_recorded
from stillhouse.inference.scoring.scores import LEAST_LOGPROB, SequenceScores, TopLogprobs
from stillhouse.inference.top_tokens import UNKNOWN, TopTokens
from stillhouse.training.model.token_bytes import token_spellings
from stillhouse.training.sft.tokens import Samples
from stillhouse.types import Sample

_MAX_HEADER: Final = 8
"""Most tokens of a template's own between the generation prompt and what was sampled: an empty thought of Qwen3 has
4, `<|channel|>final<|message|>` of gpt-oss 3."""


class RecordedScores:
    """Makes recorded turns of `model`, or of anybody, the scores of samples for the student's tokenizer.

    Turns for which fewer than `top_k` most probable tokens were asked serve none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, top_k: int, model: str | None = None) -> None:
        spellings = token_spellings(tokenizer)
        self._ids = {spelling: token for token, spelling in enumerate(spellings) if spelling}
        self._special = special_ids(tokenizer)
        self._model = model
        self.top_k = min(top_k, len(spellings))

    def of_samples(self, folder: Path, samples: Samples) -> Iterator[tuple[Sample, SequenceScores]]:
        """Yield each sample that the turns recorded in a dataset's folder serve; raise InputError if damaged."""
        numbers = samples.by_row_id()
        for row in read_recorded(folder):
            if self._model not in (None, row.model):
                continue
            turns: dict[int, TopTokens] | None = None
            for number in numbers.get(row.id, ()):
                turns = turns or {message: self._translated(turn) for message, turn in row.turns.items()}
                sample = samples[number]
                scores = self.scores(sample, samples.starts(number), turns)
                if scores is not None:
                    yield sample, scores

    def scores(
        self, sample: Sample, starts: Sequence[MessageStart], turns: Mapping[int, TopTokens]
    ) -> SequenceScores | None:
        """Return scores of a sample's targets; None where one of them was not sampled so.

        Args:
            sample: with the messages that begin at `starts`.
            starts: of its trained messages.
            turns: by message, in the student's tokens.
        """
        ends = [*(start.token for start in starts), len(sample.token_ids)]
        parts = []
        for start, (first, end) in zip(starts, pairwise(ends), strict=True):
            targets = [place - first for place in range(first, end) if sample.loss_mask[place]]
            if not targets:
                continue
            turn = turns.get(start.message)
            part = None if turn is None else self._of_turn(turn, sample.token_ids[first:end], targets)
            if part is None:
                return None
            parts.append(part)
        return joined(parts) if parts else None

    def hard(self, sample: Sample) -> SequenceScores:
        """Return scores of a teacher that is certain of each target: the KL from it is the cross-entropy."""
        return self._hard(list(compress(sample.token_ids, sample.loss_mask)))

    def _hard(self, targets: Sequence[int]) -> SequenceScores:
        shape = (len(targets), self.top_k)
        ids_NK, logprobs_NK = np.full(shape, UNKNOWN, np.int32), np.full(shape, LEAST_LOGPROB)
        ids_NK[:, 0], logprobs_NK[:, 0] = targets, 0.0
        return SequenceScores([0.0] * len(targets), TopLogprobs.rounded(_filled(ids_NK), logprobs_NK))

    def _of_turn(self, turn: TopTokens, ids: Sequence[int], targets: Sequence[int]) -> SequenceScores | None:
        """Return scores of the `targets` of a message with `ids`; hard ones before and behind what was sampled."""
        read, sampled = list(ids[: targets[-1] + 1]), turn.tokens_N.tolist()
        first = _place(read, sampled)
        if first is None or turn.top.ids_NK.shape[1] < self.top_k:
            return None
        end = first + len(sampled)
        if len(read) > end + 1 or not self._special.issuperset(read[end:]):
            return None
        places = [target - first for target in targets if first <= target < end]
        top = TopLogprobs(turn.top.ids_NK[places], turn.top.logprobs_NK[places], turn.top.log_tail_N[places])
        return joined(
            [
                self._hard([read[target] for target in targets if target < first]),
                SequenceScores(turn.logprobs_N[places].tolist(), self._best(top)),
                self._hard([read[target] for target in targets if target >= end]),
            ]
        )

    def _best(self, top: TopLogprobs) -> TopLogprobs:
        """Return the best of those that the student has a token for; the mass of the rest goes to the others."""
        logprobs_NK = np.where(top.ids_NK == UNKNOWN, -np.inf, top.logprobs_NK.astype(np.float64))
        order_NK = np.argsort(-logprobs_NK, axis=1, kind="stable")
        ids_NK, logprobs_NK = (np.take_along_axis(array, order_NK, 1) for array in (top.ids_NK, logprobs_NK))
        raw_NK = np.where(top.ids_NK == UNKNOWN, top.logprobs_NK.astype(np.float64), -np.inf)
        lost_N = np.exp(raw_NK).sum(axis=1)
        log_tail_N = np.log(np.exp(top.log_tail_N.astype(np.float64)) + lost_N)
        known = TopLogprobs(
            _filled(ids_NK), np.maximum(logprobs_NK, LEAST_LOGPROB).astype(np.float16), log_tail_N.astype(np.float16)
        )
        return known.best(self.top_k)

    def _translated(self, turn: TopTokens) -> TopTokens:
        """Return the turn in the student's tokens."""
        if turn.spellings is None:
            return turn
        # The last belongs to `UNKNOWN`.
        ids = np.array([*(self._ids.get(spelling, UNKNOWN) for spelling in turn.spellings), UNKNOWN], np.int32)
        top = TopLogprobs(ids[turn.top.ids_NK], turn.top.logprobs_NK, turn.top.log_tail_N)
        return TopTokens(ids[turn.tokens_N], turn.logprobs_N, top, None)


def _place(ids: Sequence[int], sampled: Sequence[int]) -> int | None:
    """Return where the sampled tokens begin in a message: all of them behind a header, or its part at the start."""
    for first in range(min(_MAX_HEADER, len(ids) - 1) + 1):
        part = ids[first : first + len(sampled)]
        if part == sampled[: len(part)] and (first == 0 or len(part) == len(sampled)):
            return first
    return None


def num_hard(top: TopLogprobs) -> int:
    """Return the number of positions at which all of the mass is on one token, as `RecordedScores.hard` has it."""
    return int(((top.logprobs_NK[:, 0] == 0.0) & (top.log_tail_N == LEAST_LOGPROB)).sum())


def joined(parts: Sequence[SequenceScores]) -> SequenceScores:
    """Join the scores of the parts of one sequence."""
    tops = [top for _, top in parts if top is not None]
    columns = (np.concatenate([getattr(top, name) for top in tops]) for name in ("ids_NK", "logprobs_NK", "log_tail_N"))
    return SequenceScores([logprob for logprobs, _ in parts for logprob in logprobs], TopLogprobs(*columns))


def _filled(ids_NK: np.ndarray) -> np.ndarray:
    """Return K distinct ids at each position, with others of no probability in place of `UNKNOWN`."""
    filled_NK = ids_NK.copy()
    for row in np.flatnonzero((ids_NK == UNKNOWN).any(axis=1)):
        present = set(filled_NK[row].tolist())
        spare = (token for token in range(2 * ids_NK.shape[1]) if token not in present)
        for column in np.flatnonzero(filled_NK[row] == UNKNOWN):
            filled_NK[row, column] = next(spare)
    return filled_NK
