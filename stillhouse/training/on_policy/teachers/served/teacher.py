"""A teacher behind a server."""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from stillhouse.errors import AuthenticationError, EndpointError, QuotaError, StillhouseError
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.training.on_policy.http import ModelServer
from stillhouse.training.on_policy.patience import Patience
from stillhouse.training.on_policy.scored import TeacherView
from stillhouse.training.on_policy.teachers.served.answers import WrongAnswer
from stillhouse.training.on_policy.teachers.served.journal import ScoreJournal
from stillhouse.training.on_policy.teachers.served.requests import Requests
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest, placed
from stillhouse.types import JsonObject

if TYPE_CHECKING:
    from stillhouse.training.on_policy.teachers.alignment import ByteAlignment

_WAY_OUT: Final = (
    "A server that gives no log-probabilities of given tokens can be learnt from by its text alone: sample rollouts "
    "from it and train by SFT"
)
_SHOWN_CHARACTERS: Final = 200
_MAX_ATTEMPTS: Final = 6
"""Tries of a request before the training to a server that says it is not ready."""


class ScoringApi(Protocol):
    """The form of request and answer of one kind of server."""

    @property
    def path(self) -> str:
        """Of the route, from the server's root."""

    def body(self, views: Sequence[TeacherView], temperature: float, *, spelt: bool = False) -> JsonObject:
        """The request for all views; `spelt` asks for the texts of tokens too."""

    def logprobs(self, answer: object, views: Sequence[TeacherView]) -> list[list[float]]:
        """Of the scored tokens of each view; raises `WrongAnswer`."""

    def spellings(self, answer: object, view: TeacherView) -> list[str | None]:
        """How the server writes each token of the one view; None where it does not say."""


@dataclass(frozen=True, slots=True)
class ServedSettings:
    """What a served teacher is told of itself."""

    name: str
    kl_coef: float
    temperature: float
    batch_tokens: int
    max_in_flight: int
    max_context: int | None


class ServedTeacher:
    """Scores through a server; what was answered is in the journal before it is used.

    Args:
        settings: its name, sizes and the sampling temperature.
        api: the form of requests.
        server: closed with the teacher.
        journal: of this teacher; closed with it.
        alignment: for a teacher with tokens of its own; None compares ids.
        sleep: waits so many seconds between two tries; None waits for real.
    """

    def __init__(
        self,
        settings: ServedSettings,
        api: ScoringApi,
        server: ModelServer,
        journal: ScoreJournal,
        alignment: "ByteAlignment | None" = None,
        *,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.name = settings.name
        self.kl_coef = settings.kl_coef
        self.max_context = settings.max_context
        self._temperature = settings.temperature
        self._api = api
        self._server = server
        self._journal = journal
        self._alignment = alignment
        self._sleep = sleep or time.sleep
        self._requests = Requests(
            self._send,
            lambda view: len(view.token_ids),
            batch_tokens=settings.batch_tokens,
            max_in_flight=settings.max_in_flight,
            sleep=sleep,
        )

    def start(self, requests: Sequence[ScoreRequest]) -> Future[list[list[float]]]:
        """See `Teacher`. What the journal knows is not asked, and equal requests are asked once."""
        views = [request.read for request in requests]
        keys = [self._journal.key(view) for view in views]
        known = self._journal.find(keys)
        asked = {key: view for key, view in zip(keys, views, strict=True) if key not in known}
        answers = self._requests.start(list(asked.values()))
        whole: Future[list[list[float]]] = Future()

        def place(answered: Future[list[list[float]]]) -> None:
            try:
                known.update(zip(asked, answered.result(), strict=True))
                whole.set_result(placed(requests, [known[key] for key in keys], self._alignment))
            except BaseException as error:
                whole.set_exception(self._told(error))

        answers.add_done_callback(place)
        return whole

    def ask(self, views: Sequence[TeacherView], temperature: float) -> list[list[float]]:
        """Log-probabilities of the views' scored tokens, asked for now, past the journal and in one request.

        Raises:
            EndpointError: the server does not give them.
        """
        try:
            return self._api.logprobs(self._post_patiently(views, temperature), views)
        except (RequestFailed, WrongAnswer) as error:
            raise self._told(error) from error

    def spellings(self, view: TeacherView) -> list[str | None]:
        """How the server writes the view's tokens; None where it does not say.

        Raises:
            EndpointError: the server does not answer.
        """
        try:
            return self._api.spellings(self._post_patiently([view], 1.0, spelt=True), view)
        except (RequestFailed, WrongAnswer) as error:
            raise self._told(error) from error

    def close(self) -> None:
        """Waits for the requests under way, and asks nothing more."""
        self._requests.stop()
        self._server.close()
        self._journal.close()

    def _send(self, views: Sequence[TeacherView]) -> list[list[float]]:
        answers = self._api.logprobs(self._post(views, self._temperature), views)
        self._journal.put({self._journal.key(view): answer for view, answer in zip(views, answers, strict=True)})
        return answers

    def _post_patiently(self, views: Sequence[TeacherView], temperature: float, *, spelt: bool = False) -> object:
        """Waits for a server that has too much to do or still loads; what else is wrong is told at once."""
        patience = Patience(_MAX_ATTEMPTS, random.Random())
        while True:
            try:
                return self._post(views, temperature, spelt=spelt)
            except RequestFailed as error:
                is_busy = (
                    error.failure.kind is FailureKind.RATE or error.failure.status == HTTPStatus.SERVICE_UNAVAILABLE
                )
                wait_s = patience.wait_s(error.failure) if is_busy else None
                if wait_s is None:
                    raise
                self._sleep(wait_s)

    def _post(self, views: Sequence[TeacherView], temperature: float, *, spelt: bool = False) -> object:
        answer = self._server.post(self._api.path, self._api.body(views, temperature, spelt=spelt))
        if isinstance(answer, str):
            told = f"HTTP 200, but its body is no JSON: {answer[:_SHOWN_CHARACTERS] or 'nothing'}"
            raise RequestFailed(Failure(FailureKind.TRANSIENT, told, 200))
        return answer

    def _told(self, error: BaseException) -> BaseException:
        where = f"teacher {self.name!r} at {self._server.root}{self._api.path}"
        if isinstance(error, WrongAnswer):
            return EndpointError(f"{where}: the answer cannot be used: {error}. {_WAY_OUT}")
        if isinstance(error, RequestFailed):
            return _final(where, error.failure)
        return error


def _final(where: str, failure: Failure) -> StillhouseError:
    if failure.kind is FailureKind.AUTH:
        return AuthenticationError(f"{where}: {failure.message}. See api_key_env of the teacher")
    if failure.kind is FailureKind.QUOTA:
        return QuotaError(f"{where}: {failure.message}")
    if failure.context_overflow:
        return EndpointError(
            f"{where}: {failure.message}. Start the server with a longer context (vLLM: --max-model-len, which counts "
            "one generated token more), or lower on_policy.max_tokens or max_turns"
        )
    if failure.status in (404, 405):
        return EndpointError(f"{where}: {failure.message}. Check base_url and the teacher's kind. {_WAY_OUT}")
    return EndpointError(
        f"{where}: {failure.message}. What was answered is kept: mend the server (out of memory: lower its "
        "--max-num-batched-tokens and the teacher's batch_tokens; late: raise the teacher's request_timeout_s) and run "
        "the same command again"
    )
