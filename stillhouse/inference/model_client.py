"""`ModelClient`: completions of one endpoint's model, in its API's form over a transport."""

import logging
from collections.abc import Sequence, Set
from dataclasses import replace

from stillhouse.inference.apis import ApiChoice
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
        self._apis = ApiChoice(endpoint)
        self._refused_keys: set[str] = set()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling
    ) -> Completion:
        """Return one attempt's completion; messages are sent without the keys that the endpoint refuses by name."""
        refused: Set[str] = self._refused_keys
        while True:
            api = self._apis.of(tools, sampling)
            body = api.request(self._endpoint, messages, tools, sampling, refused)
            try:
                answer = await self._transport.post(api.path, body)
                break
            except RequestFailed as failed:
                if self._apis.learn(api, failed.failure):
                    continue
                if refused is not self._refused_keys:
                    raise
                if demanded := demanded_keys(failed.failure) & refused:
                    # Behind a router one seller may demand what another refuses.
                    refused = refused - demanded
                else:
                    self._learn_refused(failed, body)
        completion = api.completion(self._endpoint, answer, tools, sampling)
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
        await self._transport.aclose()
