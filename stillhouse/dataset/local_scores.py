"""Scores of given tokens by a teacher in this process, through the ledger: what it scored once is not scored again."""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import compress
from typing import TYPE_CHECKING, Final

from stillhouse.chat.refs import model_identity
from stillhouse.config import RuntimeConfig
from stillhouse.errors import InputError
from stillhouse.inference.scoring.api import TokenSequence
from stillhouse.inference.scoring.ledger import ScoreLedger, open_ledger
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.store import ArtifactStore

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CHUNK_SEQUENCES: Final = 256


class LocalScorer:
    """A teacher that is loaded when there is something to score.

    Its scores depend on its weights and on where it runs, which decides their type: both name its ledger.

    Raises:
        StoreError: the ledger cannot be read or written.
    """

    def __init__(self, ref: str, runtime: RuntimeConfig) -> None:
        import torch

        self._ref = ref
        self._runtime = runtime
        self._model: PreTrainedModel | None = None
        self._stack = ExitStack()
        device = runtime.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        known_by = {"kind": "local", "model": model_identity(ref), "dtype": "auto", "device": device}
        store = ArtifactStore(runtime.store, runtime.scratch)
        # The identity tells the weights, as in the keys of stages, so that no probe has to.
        self._ledger: ScoreLedger = self._stack.enter_context(open_ledger(store, known_by, probe=[]))

    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Return log-probabilities of the scored tokens of each sequence, in nats.

        Raises:
            ConfigError: the teacher cannot be loaded.
            InputError: a token id lies outside its vocabulary.
            StoreError: the ledger cannot be read or written.
        """
        logprobs: list[list[float]] = []
        for first in range(0, len(sequences), _CHUNK_SEQUENCES):
            scores = self._ledger.completed(sequences[first : first + _CHUNK_SEQUENCES], self._score)
            logprobs += [one.logprobs for one in scores]
        return logprobs

    def close(self) -> None:
        """Frees the model and ends its part of the ledger."""
        self._stack.close()
        if self._model is not None:
            import torch

            self._model = None
            # Another process may serve or train next on the same device.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _score(self, sequences: Sequence[TokenSequence]) -> list[SequenceScores]:
        from stillhouse.serving.models import load_model
        from stillhouse.serving.score import score_tokens

        if self._model is None:
            runtime = self._runtime
            self._model = load_model(self._ref, device=runtime.device, dtype="auto", num_threads=runtime.num_threads)
        num_known = self._model.config.get_text_config().vocab_size
        largest = max(max(sequence.token_ids) for sequence in sequences)
        if largest >= num_known:
            raise InputError(
                f"token id {largest} was sampled, and teacher {self._ref!r} knows {num_known} tokens; expected student "
                "and teacher to share a tokenizer. Name such a teacher in on_policy.teacher"
            )
        scores = score_tokens(self._model, [sequence.token_ids for sequence in sequences])
        return [
            SequenceScores(list(compress(logprobs, sequence.loss_mask)))
            for sequence, logprobs in zip(sequences, scores, strict=True)
        ]
