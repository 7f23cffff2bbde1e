"""The routes by which a client changes what is served: vLLM's, for a trainer that samples from its newest weights.

They load files of this machine by any path, so that a server has them only where it was told to.
"""

import asyncio
from collections.abc import Callable

from starlette.responses import JSONResponse, PlainTextResponse, Response

from stillhouse.serving.adapters import AdaptedModel
from stillhouse.serving.protocol import ApiError, CollectiveCall, LoadAdapterRequest, UnloadAdapterRequest
from stillhouse.serving.worker import Engine


class UpdateRoutes:
    """Changes of one engine's model; each answers once it is made."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def load_adapter(self, body: LoadAdapterRequest) -> Response:
        """POST /v1/load_lora_adapter: the adapter can be asked for by its name."""
        name, folder, in_place = body.lora_name, body.lora_path, body.load_inplace
        await self._change(lambda model: model.load(name, folder, in_place=in_place), name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload_adapter(self, body: UnloadAdapterRequest) -> Response:
        """POST /v1/unload_lora_adapter."""
        await self._change(lambda model: model.unload(body.lora_name), body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def call_workers(self, body: CollectiveCall) -> Response:
        """POST /collective_rpc: takes the weights of a folder; adapters are gone then."""
        await self._change(lambda model: model.reload(body.arguments.weights_path), None)
        return JSONResponse({"results": [None]})

    async def reset_prefix_cache(self) -> Response:
        """POST /reset_prefix_cache: nothing is left to forget, since every change forgets what it makes wrong."""
        return Response()

    async def _change(self, apply: Callable[[AdaptedModel], None], adapter: str | None) -> None:
        try:
            await asyncio.wrap_future(self._engine.change(apply, adapter))
        except ValueError as error:
            is_missing = "cannot be found" in str(error) or "No adapter found" in str(error)
            code = "not_found" if is_missing else "invalid_value"
            raise ApiError(404 if is_missing else 400, str(error), code=code) from error
