"""Routes that change the served model, and their requests."""

import asyncio
from collections.abc import Callable
from typing import Literal

from pydantic import AliasChoices, BaseModel, Field
from starlette.responses import JSONResponse, PlainTextResponse, Response

from stillhouse.serving.models import AdaptedModel
from stillhouse.serving.protocol import ApiError
from stillhouse.serving.worker import ModelWorker


class LoadAdapterRequest(BaseModel):
    """Body of vLLM's POST /v1/load_lora_adapter."""

    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1)
    load_inplace: bool = False
    """Replace an adapter of this name."""


class UnloadAdapterRequest(BaseModel):
    """Body of vLLM's POST /v1/unload_lora_adapter."""

    lora_name: str = Field(min_length=1)


class _ReloadArguments(BaseModel):
    weights_path: str


class CollectiveCall(BaseModel):
    """Body of vLLM's POST /collective_rpc, of whose methods this server has one."""

    method: Literal["reload_weights"]
    arguments: _ReloadArguments = Field(validation_alias=AliasChoices("kwargs"))


class UpdateRoutes:
    """Routes that change the served model, as vLLM has them; each answers once the change is made.

    They load any file of this machine, so a server offers them only on request.
    """

    def __init__(self, worker: ModelWorker) -> None:
        self._engine = worker

    async def load_adapter(self, body: LoadAdapterRequest) -> Response:
        """POST /v1/load_lora_adapter: requests may then name the adapter as their model."""
        name, folder, in_place = body.lora_name, body.lora_path, body.load_inplace
        await self._change(lambda model: model.load(name, folder, in_place=in_place), name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload_adapter(self, body: UnloadAdapterRequest) -> Response:
        """POST /v1/unload_lora_adapter."""
        await self._change(lambda model: model.unload(body.lora_name), body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def call_workers(self, body: CollectiveCall) -> Response:
        """POST /collective_rpc: loads the weights of a folder and drops all adapters."""
        await self._change(lambda model: model.reload(body.arguments.weights_path), None)
        return JSONResponse({"results": [None]})

    async def reset_prefix_cache(self) -> Response:
        """POST /reset_prefix_cache: does nothing, since every change drops the caches it invalidates."""
        return Response()

    async def _change(self, apply: Callable[[AdaptedModel], None], adapter: str | None) -> None:
        try:
            await asyncio.wrap_future(self._engine.change(apply, adapter))
        except ValueError as error:
            is_missing = "cannot be found" in str(error) or "No adapter found" in str(error)
            code = "not_found" if is_missing else "invalid_value"
            raise ApiError(404 if is_missing else 400, str(error), code=code) from error
