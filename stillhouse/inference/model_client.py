"""`ModelClient`: completions of one endpoint's model, in its API's form over a transport."""

import asyncio
import logging
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from stillhouse.inference.apis import api_of
from stillhouse.inference.completion import Completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import RequestFailed
from stillhouse.inference.resending import demanded_keys, refused_key
from stillhouse.inference.sampling import Sampling
from stillhouse.inference.transport import Transport
from stillhouse.types import JsonObject, Message, ToolSchema

_LOG = logging.getLogger(__name__)


class ModelClient:
    """A `ChatClient` of one endpoint. It closes its transport."""

    def __init__(self, endpoint: Endpoint, transport: Transport) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._api = api_of(endpoint)
        self._refused_keys: set[str] = set()
        # A second thread would make the event loop wait for the interpreter's lock twice as often.
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="distributions")

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling
    ) -> Completion:
        """Return one attempt's completion; messages are sent without the keys that the endpoint refuses by name."""
        refused: Set[str] = self._refused_keys
        while True:
            body = self._api.request(self._endpoint, messages, tools, sampling, refused)
            try:
                answer = await self._transport.post(self._api.path, body)
                break
            except RequestFailed as failed:
                if refused is not self._refused_keys:
                    raise
                if demanded := demanded_keys(failed.failure) & refused:
                    # Behind a router one seller may demand what another refuses.
                    refused = refused - demanded
                else:
                    self._learn_refused(failed, body)
        read = partial(self._api.completion, self._endpoint, answer, tools, sampling)
        # The most probable tokens of a long answer take some 30 ms.
        in_thread = sampling.record_top_k is not None
        completion = await asyncio.get_running_loop().run_in_executor(self._reader, read) if in_thread else read()
        return replace(completion, turn=self._endpoint.with_cost(completion.turn), limits=answer.limits)

    def _learn_refused(self, failed: RequestFailed, body: JsonObject) -> None:
        """Note the key that a refusal names; raise the refusal where it names none."""
        key = refused_key(failed.failure, body.get("messages", []))
        if key is None:
            raise failed
        # Another request may have learnt it meanwhile.
        if key not in self._refused_keys:
            self._refused_keys.add(key)
            _LOG.warning(
                "%s: model %s refuses the key %r in messages of the assistant, which go without it from now on: %s",
                *(self._endpoint.base_url, self._endpoint.model, key, failed.failure.message),
            )

    async def aclose(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)
        await self._transport.aclose()
