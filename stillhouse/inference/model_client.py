"""`ModelClient`: completions of one endpoint's model, in its API's form over a transport."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from stillhouse.config import ModelRole
from stillhouse.inference.apis import Api, ApiChoice
from stillhouse.inference.completion import Completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.negotiation import Asked, Terms, TermsBook, learnt
from stillhouse.inference.negotiation.message_keys import demanded_keys
from stillhouse.inference.price import DEFAULT_TIER
from stillhouse.inference.providers import provider_of
from stillhouse.inference.sampling import ChatRequest
from stillhouse.inference.schema_forms import Misfit
from stillhouse.inference.transport import HttpAnswer, Transport
from stillhouse.types import JsonObject

_LOG = logging.getLogger(__name__)
ALONE_S: Final = 5.0
"""Longest time that others wait for the first request; a refusal of a parameter takes less, an answer may take more."""


class ModelClient:
    """Asks one endpoint, and learns from refusals what its model takes. It closes its transport.

    What it learns holds for all clients of that model in this process, and is kept in `folder`. The first request goes
    alone for up to `alone_s`, so that not all of them are refused for the same reason.
    """

    def __init__(
        self, endpoint: Endpoint, transport: Transport, *, folder: Path | None = None, alone_s: float = 0.0
    ) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._apis = ApiChoice(endpoint)
        self._provider = provider_of(endpoint)
        self._folder = folder
        self._books: dict[str, TermsBook] = {}
        self._alone_s = alone_s
        self._may_go: asyncio.Event | None = None
        # A second thread would make the event loop wait for the interpreter's lock twice as often.
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="distributions")

    async def complete(self, request: ChatRequest) -> Completion:
        """Return one attempt's completion, asked for as the endpoint takes it; raise RequestFailed if there is none."""
        may_go = await self._turn()
        restored: set[str] = set()
        other_tier: JsonObject = {}
        try:
            while True:
                api = self._apis.of(request)
                book = self._book(api.path)
                terms = book.terms
                if restored:
                    kept = [key for key in terms.refused_keys if key not in restored]
                    terms = replace(terms, refused_keys=kept)
                body, not_taken = self._written(api, terms, request)
                body |= other_tier
                try:
                    answer = await self._transport.post(api.path, body)
                    # Routers tell refusals with HTTP 200 as well.
                    completion = await self._read(api, answer, request)
                    break
                except RequestFailed as failed:
                    if self._apis.learn(api, failed.failure):
                        continue
                    has_no_room = failed.failure.kind is FailureKind.BUSY and body.get("service_tier") == "flex"
                    if has_no_room and self._endpoint.flex_fallback:
                        other_tier = {"service_tier": DEFAULT_TIER}
                        continue
                    failure = replace(failed.failure, limits=self._provider.limits(failed.failure.limits))
                    if restored:
                        raise RequestFailed(failure) from failed
                    # Behind a router one seller may demand what another refuses.
                    if not (restored := demanded_keys(failure).intersection(terms.refused_keys)):
                        self._learn(book, terms, failure, Asked(self._endpoint, request.tools, request.sampling, body))
        finally:
            may_go.set()
        turn = completion.turn
        if not_taken:
            turn = replace(turn, not_taken=not_taken)
        if other_tier and turn.service_tier is None:
            turn = replace(turn, **other_tier)
        return replace(completion, turn=self._endpoint.with_cost(turn), limits=self._provider.limits(answer.limits))

    def _book(self, path: str) -> TermsBook:
        if path not in self._books:
            self._books[path] = TermsBook(self._endpoint, path, self._folder)
        return self._books[path]

    async def _read(self, api: Api, answer: HttpAnswer, request: ChatRequest) -> Completion:
        read = partial(api.completion, answer, request)
        # The most probable tokens of a long answer take some 30 ms.
        in_thread = request.sampling.record_top_k is not None
        return await asyncio.get_running_loop().run_in_executor(self._reader, read) if in_thread else read()

    async def _turn(self) -> asyncio.Event:
        """Wait until the first request has shown what is taken; return the event that says so."""
        if self._may_go is None:
            self._may_go = asyncio.Event()
            if self._alone_s:
                asyncio.get_running_loop().call_later(self._alone_s, self._may_go.set)
        elif self._alone_s:
            await self._may_go.wait()
        return self._may_go

    def _written(self, api: Api, terms: Terms, request: ChatRequest) -> tuple[JsonObject, JsonObject]:
        """Return the body of a request, and what it holds otherwise than asked."""
        if not terms.sends_answer and self._endpoint.role is not ModelRole.JUDGE:
            terms = replace(terms, sends_answer=True)
        try:
            sent = terms.fitted(request.tools, request.sampling, self._provider.answer_form)
        except Misfit:
            # To be refused in the seller's own words.
            sent = request.tools, request.sampling
        addressed = terms.addressed(request.messages)
        body = api.body(ChatRequest(addressed, *sent, set(terms.refused_keys)))
        not_taken = terms.apply(body, request.sampling.extra_body.keys())
        return body, not_taken if addressed is request.messages else {**not_taken, "system": terms.system}

    def _learn(self, book: TermsBook, terms: Terms, failure: Failure, asked: Asked) -> None:
        """Change the terms by a refusal; raise RequestFailed where it teaches nothing."""
        with book.lock:
            # Another request may have taught it meanwhile.
            if book.terms == terms:
                changed, what = learnt(terms, failure, asked)
                book.put(changed)
                _LOG.warning(
                    "%s: model %s: from now on %s: %s",
                    *(self._endpoint.base_url, self._endpoint.model, what, failure.message),
                )

    async def aclose(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)
        await self._transport.aclose()
