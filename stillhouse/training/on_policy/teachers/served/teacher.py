"""A teacher behind a scoring server."""

from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from stillhouse.errors import AuthenticationError, EndpointError, QuotaError, StillhouseError
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.model_server import ModelServer
from stillhouse.inference.scoring.api import WrongAnswer
from stillhouse.inference.scoring.scorer import Scorer
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.training.on_policy.teachers.served.given_ids import GivenIdsScorer
from stillhouse.training.on_policy.teachers.teacher import Alignment, aligned
from stillhouse.types import Sample

ResultT = TypeVar("ResultT")

_REMEDY: Final = (
    "A server that returns no log-probabilities of given tokens can only be distilled by SFT: sample rollouts from it "
    "and train on its text"
)


@dataclass(eq=False)
class ServedTeacher:
    """Scores through a server; see `Teacher`. `resources` are closed with it."""

    name: str
    kl_coef: float
    max_context: int | None
    scorer: Scorer
    server: ModelServer
    resources: ExitStack
    alignment: Alignment | None = None
    given: GivenIdsScorer | None = None
    """Scores requests that have the student's most probable tokens, where the server can."""

    def start(self, requests: Sequence[Sample]) -> Future[list[SequenceScores]]:
        return self.server.start(self._explained(self._score(requests)))

    def ask(self, views: Sequence[Sample], temperature: float) -> list[list[float]]:
        """Return the log-probabilities of the views' scored tokens, by one request that bypasses the ledger.

        Raises EndpointError if the server does not return them.
        """
        scores = self.server.start(self._explained(self.scorer.score_now(views, temperature))).result()
        return [scored.logprobs for scored in scores]

    def ask_at_once(self, view: Sample, temperature: float, count: int) -> list[list[float]]:
        """Return the answers to `count` requests of `ask` for the same view at once."""
        asked = [self.scorer.score_now([view], temperature) for _ in range(count)]
        futures = [self.server.start(self._explained(request)) for request in asked]
        return [scored.logprobs for future in futures for scored in future.result()]

    def spellings(self, view: Sample) -> list[str | None]:
        """Return the server's text of each token, None where it returns none; raises as `ask`."""
        return self.server.start(self._explained(self.scorer.spellings(view))).result()

    def close(self) -> None:
        """Wait for the requests in progress and close the connection."""
        self.server.start(self.scorer.aclose()).result()
        self.resources.close()

    async def _score(self, requests: Sequence[Sample]) -> list[SequenceScores]:
        if self.given is not None and all(request.best_ids_NK is not None for request in requests):
            scores = await self.given.score(requests)
        else:
            scores = await self.scorer.score([request.read for request in requests])
        return aligned(requests, scores, self.alignment)

    async def _explained(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        where = f"teacher {self.name!r} at {self.scorer.url}"
        try:
            return await work
        except WrongAnswer as error:
            raise EndpointError(f"{where}: the answer cannot be used: {error}. {_REMEDY}") from error
        except RequestFailed as error:
            raise _final_error(where, error.failure) from error


def _final_error(where: str, failure: Failure) -> StillhouseError:
    if failure.kind is FailureKind.AUTH:
        return AuthenticationError(f"{where}: {failure.message}. See api_key_env of the teacher")
    if failure.kind is FailureKind.QUOTA:
        return QuotaError(f"{where}: {failure.message}")
    if failure.context_overflow:
        return EndpointError(
            f"{where}: {failure.message}. Start the server with a longer context (vLLM: --max-model-len, which counts "
            "one generated token more), or lower on_policy.max_tokens or max_turns"
        )
    if "logprobs" in failure.message:
        return EndpointError(
            f"{where}: {failure.message}. Lower the teacher's top_k, or start the server with more (vLLM: "
            "--max-logprobs)"
        )
    if failure.status in (404, 405):
        return EndpointError(f"{where}: {failure.message}. Check base_url and the teacher's kind. {_REMEDY}")
    if failure.unreachable:
        return EndpointError(
            f"{where}: cannot be reached: {failure.message}. Scores received so far are kept: start the server again, "
            "and run the same command again"
        )
    return EndpointError(
        f"{where}: {failure.message}. Scores received so far are kept: fix the server (out of memory: lower its "
        "--max-num-batched-tokens and the teacher's batch_tokens; late: raise runtime.request_timeout_s) and run "
        "the same command again"
    )
