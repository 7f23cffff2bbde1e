"""The HTTP application: routes of the OpenAI API over one engine.

Not here on purpose: streaming, embeddings, stop strings, penalties.
"""

from collections.abc import Collection
from typing import Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stillhouse.http.own_origin import OwnOriginOnly
from stillhouse.serving.admission import AdmissionController, ClientGone, RequestGuard
from stillhouse.serving.protocol import ApiError
from stillhouse.serving.routes import Routes, ServedModel, UpdateRoutes
from stillhouse.serving.worker import EngineStopped

_CLIENT_CLOSED_REQUEST: Final = 499


def create_app(
    model: ServedModel,
    admission: AdmissionController,
    *,
    api_key: str | None = None,
    names: Collection[str] = (),
    allow_updates: bool = False,
) -> FastAPI:
    """The application.

    Args:
        model: the model behind the routes.
        admission: admits requests to its engine.
        api_key: key that clients must send; None asks for none.
        names: host names of the server besides IP addresses and `localhost`; requests to others are refused.
        allow_updates: lets clients load adapters and weights.
    """
    # The pages /docs and /redoc load scripts from the web; this server must work offline.
    app = FastAPI(title="stillhouse", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(RequestGuard, api_key=api_key, on_reject=admission.count_rejection)
    app.add_middleware(OwnOriginOnly, names=names)
    routes = Routes(model, admission)
    app.get("/health")(routes.health)
    app.get("/v1/models")(routes.models)
    app.get("/v1/stats")(routes.stats)
    app.post("/v1/chat/completions")(routes.chat)
    app.post("/v1/completions")(routes.completions)
    if allow_updates:
        updates = UpdateRoutes(admission.engine)
        app.post("/v1/load_lora_adapter")(updates.load_adapter)
        app.post("/v1/unload_lora_adapter")(updates.unload_adapter)
        app.post("/collective_rpc")(updates.call_workers)
        app.post("/reset_prefix_cache")(updates.reset_prefix_cache)
    _shape_errors(app, admission)
    return app


def _shape_errors(app: FastAPI, admission: AdmissionController) -> None:
    """Gives every error OpenAI's body and counts it."""

    def answer(error: ApiError) -> Response:
        admission.count_rejection(error.status)
        return JSONResponse(error.body, error.status, headers=error.headers)

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"] if part != "body")
        return answer(ApiError(400, f"{field or 'body'}: {first['msg']}", code="invalid_value", param=field or None))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return answer(ApiError(error.status_code, message, code="unknown_url"))

    @app.exception_handler(EngineStopped)
    async def stopped(request: Request, error: EngineStopped) -> Response:
        return answer(ApiError(503, "the server is shutting down", code="shutting_down"))

    @app.exception_handler(ClientGone)
    async def gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return answer(ApiError(500, f"{type(error).__name__}: {error}", code="internal_error"))
