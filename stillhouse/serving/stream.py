"""Answers as server-sent events, while the worker samples them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, aclosing
from typing import Final, NamedTuple

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from stillhouse.serving.admission import AdmissionController
from stillhouse.serving.answers import envelope
from stillhouse.serving.chunks import ChoiceChunks
from stillhouse.serving.completions import PlannedCompletions, RunningCompletion, ServedModel, start
from stillhouse.serving.generation import Generation
from stillhouse.serving.protocol import ApiError
from stillhouse.serving.text import CompletionText
from stillhouse.serving.worker import WorkerStopped
from stillhouse.types import JsonObject

_DONE: Final = b"data: [DONE]\n\n"


class EventStream(StreamingResponse):
    """A response of events; however it ends, the completions of a client that has left end too, and free `places`."""

    def __init__(self, events: AsyncGenerator[bytes, None], places: AsyncExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._events = events
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        async with self._places, aclosing(self._events):
            await super().__call__(scope, receive, send)


class StreamedAnswer:
    """The events of one request.

    Args:
        admission: lets the request in before the first event, or refuses it.
        model: what is served.
        planned: completions to sample.
        choices: chunks of each of them.
        kind: `chat.completion.chunk` or `text_completion`.
        prompts: the request's prompts, for its usage.
    """

    def __init__(
        self,
        admission: AdmissionController,
        model: ServedModel,
        planned: PlannedCompletions,
        choices: Sequence[ChoiceChunks],
        kind: str,
        prompts: Sequence[list[int]],
    ) -> None:
        self._admission = admission
        self._model = model
        self._planned = planned
        self._choices = choices
        self._prompts = prompts
        options = planned.body.stream_options
        self._with_usage = options is not None and options.include_usage
        self._frame = envelope(kind, planned.body.model, [], {})
        del self._frame["usage"]

    async def response(self) -> EventStream:
        """The response, once the request is admitted; raises ApiError if it is not."""
        places = AsyncExitStack()
        await places.enter_async_context(self._admission.admitted(len(self._choices)))
        return EventStream(self._events(), places)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        feed = _TokenFeed()
        running: list[RunningCompletion] = []
        try:
            running = start(self._admission.worker, self._model, self._planned, feed.reader)
            feed.watch([completion.future for completion in running])
            for choices in self._choices:
                for choice in choices.begin():
                    yield self._event([choice])
            async for choice in self._sampled(feed, running):
                yield self._event([choice])
            generations = [completion.future.result() for completion in running]
            usage = self._admission.count_answer(generations, *self._prompts)
            if self._with_usage:
                yield self._event([], usage)
            yield _DONE
        except Exception as error:  # the answer has begun, so only an event can tell
            failed = failure(error)
            self._admission.count_rejection(failed.status)
            yield _data(failed.body)
        finally:
            unfinished = [completion.future for completion in running if not completion.future.done()]
            if unfinished:
                self._admission.abandon(unfinished)

    async def _sampled(
        self, feed: "_TokenFeed", running: Sequence[RunningCompletion]
    ) -> AsyncGenerator[JsonObject, None]:
        num_running = len(running)
        while num_running:
            news = await feed.next()
            choices = self._choices[news.place]
            if isinstance(news, _Token):
                for choice in choices.add(news.text, news.token, news.logprob):
                    yield choice
                continue
            num_running -= 1
            completion = running[news.place]
            generation, *_ = completion.finished(completion.future.result())
            for choice in choices.end(completion.text.take(), generation.finish_reason):
                yield choice

    def _event(self, choices: list[JsonObject], usage: dict[str, int] | None = None) -> bytes:
        chunk = {**self._frame, "choices": choices}
        return _data(chunk | {"usage": usage} if self._with_usage else chunk)


def failure(error: Exception) -> ApiError:
    """What a client is told of an error while its request is answered."""
    match error:
        case ApiError():
            return error
        case WorkerStopped():
            return ApiError(503, "the server is shutting down", code="shutting_down")
    return ApiError(500, f"{type(error).__name__}: {error}", code="internal_error")


class _Token(NamedTuple):
    place: int
    text: str
    token: int
    logprob: float


class _End(NamedTuple):
    place: int


class _TokenFeed:
    """Carries what the worker's thread samples to the event loop, in order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[_Token | _End] = asyncio.Queue()

    def reader(self, index: int, text: CompletionText) -> Callable[[int, float], bool]:
        """The `on_token` of a choice."""

        def on_token(token: int, logprob: float) -> bool:
            is_ended = text.read(token)
            self._put(_Token(index, text.take(), token, logprob))
            return is_ended

        return on_token

    def watch(self, futures: "Sequence[Future[Generation]]") -> None:
        """Puts an end into the feed for each completion that ends, in whatever way."""
        for index, future in enumerate(futures):
            future.add_done_callback(lambda _, index=index: self._put(_End(index)))  # type: ignore[misc]

    async def next(self) -> _Token | _End:
        """Waits for the next."""
        return await self._queue.get()

    def _put(self, news: _Token | _End) -> None:
        # After the loop's end nobody waits, and the worker still has its other requests.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, news)


def _data(value: JsonObject) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
