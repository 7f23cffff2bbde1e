"""Scores of the tokens that a student sampled by a teacher behind a server, through the ledger of its training."""

from collections.abc import Sequence
from itertools import compress

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import RuntimeConfig
from stillhouse.evaluation.log_ratio import ServedBy
from stillhouse.inference.budget import Budget
from stillhouse.inference.scoring.api import TokenSequence
from stillhouse.training.on_policy.teachers.served.connect import connect
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest


class ServedScorer:
    """Asks the server for what is not in the ledger, after the checks that a training makes before it trusts one.

    Args:
        served: the teacher.
        runtime: store, hedging, and how long to wait for a server that fails.

    Raises:
        StillhouseError: of the kinds that `connect` names.
    """

    def __init__(self, served: ServedBy, runtime: RuntimeConfig) -> None:
        self._served = connect(
            # Most probable tokens are not compared here.
            served.teacher.model_copy(update={"top_k": None}),
            kl_coef=1.0,
            temperature=1.0,
            tokenizer=load_tokenizer(served.student_ref),
            alignment=None,
            runtime=runtime,
            budget=Budget(served.budget, None),
        )

    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Log-probabilities of the scored tokens of each sequence, in nats.

        Raises:
            EndpointError: the server does not answer, or without them.
            BudgetReached: they would cost more than the budget allows.
        """
        requests = [ScoreRequest(one.token_ids, one.loss_mask, "") for one in sequences]
        scores = self._served.start(requests).result()
        return [list(compress(score.logprobs, one.loss_mask)) for score, one in zip(scores, sequences, strict=True)]

    def close(self) -> None:
        """Waits for requests in progress and ends its part of the ledger."""
        self._served.close()
