"""Scores of tokens of the client's choice beside the most probable ones, by vLLM's `/inference/v1/generate`.

`prompt_logprob_token_ids` has a list of ids for each prompt token behind `prompt_logprob_start`; -1 fills all up to the
longest, which `--max-logprobs` bounds. The answer's `prompt_token_id_logprobs` is a `.npy` in base64, float32 [lists,
longest], minus infinity for -1, at temperature 1 (vLLM 0.32: `entrypoints/scale_out/token_in_token_out`).
"""

from base64 import b64decode
from collections.abc import Sequence
from io import BytesIO
from typing import cast

import numpy as np

from stillhouse.inference.scoring.api import GivenIds, TokenSequence, WrongAnswer
from stillhouse.inference.scoring.completions_api import VllmApi
from stillhouse.inference.scoring.scores import MOST_LOGPROB, SequenceScores
from stillhouse.types import JsonObject


class GivenIdsApi(VllmApi):
    """Requests with one `GivenIds` each, and what the answers say."""

    path = "/inference/v1/generate"

    def body(self, sequences: Sequence[TokenSequence], temperature: float, *, spelt: bool = False) -> JsonObject:
        [sequence] = sequences
        assert isinstance(sequence, GivenIds)
        first, ids = sequence.loss_mask.index(True), iter(sequence.ids_NK.tolist())
        rows = [next(ids) if is_scored else [] for is_scored in sequence.loss_mask[first:]]
        # Else it spells every alternative in the process that answers, while other requests wait (verl#7648).
        asked: JsonObject = {"max_tokens": 1, "prompt_logprobs": self._top_k, "detokenize": False}
        asked |= {"prompt_logprob_start": first - 1, "prompt_logprob_token_ids": rows}
        return {"model": self._model, "token_ids": sequence.token_ids, "sampling_params": asked}

    def scores(self, answer: object, sequences: Sequence[TokenSequence]) -> list[SequenceScores]:
        [sequence] = sequences
        assert isinstance(sequence, GivenIds)
        is_scored = sequence.loss_mask[sequence.loss_mask.index(True) :]
        text = answer.get("prompt_token_id_logprobs") if isinstance(answer, dict) else None
        try:
            found_NK = np.load(BytesIO(b64decode(text or "")))[np.array(is_scored)].reshape(sequence.ids_NK.shape)
        except (ValueError, EOFError, IndexError, TypeError) as error:
            raise WrongAnswer(f"it has no `prompt_token_id_logprobs` for {len(is_scored)} tokens: {error}") from error
        if not (found_NK <= MOST_LOGPROB).all():
            raise WrongAnswer("`prompt_token_id_logprobs` holds numbers above 0, or none; expected at most 0")
        [own] = super().scores({"choices": [{**cast(JsonObject, answer), "index": 0}]}, sequences)
        return [SequenceScores(np.minimum(found_NK, 0.0).ravel().tolist(), own.top)]
