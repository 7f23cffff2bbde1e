"""The HTTP application: routes of the OpenAI API over one worker.

Not here on purpose: streaming, constrained decoding, embeddings, penalties, the Responses API.
"""

from collections.abc import Collection
from typing import Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stillhouse.config.expected import expected
from stillhouse.http.own_origin import OwnOriginOnly
from stillhouse.serving.admission import AdmissionController, ClientGone, RequestGuard
from stillhouse.serving.completions import ServedModel
from stillhouse.serving.protocol import ApiError, invalid_value
from stillhouse.serving.routes import Routes
from stillhouse.serving.worker import WorkerStopped

_CLIENT_CLOSED_REQUEST: Final = 499


def create_app(
    model: ServedModel,
    admission: AdmissionController,
    *,
    api_key: str | None = None,
    names: Collection[str] = (),
) -> FastAPI:
    """Return the application.

    Clients must send the `api_key`, if there is one. `names` are host names of the server besides IP addresses and
    `localhost`; requests to others are refused.
    """
    # The pages /docs and /redoc load scripts from the web; this server must work offline.
    app = FastAPI(title="stillhouse", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(RequestGuard, api_key=api_key, on_reject=admission.count_rejection)
    app.add_middleware(OwnOriginOnly, names=names)
    routes = Routes(model, admission)
    app.get("/health")(routes.health)
    app.get("/v1/models")(routes.models)
    app.get("/v1/models/{name:path}")(routes.model)
    app.get("/v1/stats")(routes.stats)
    app.post("/v1/chat/completions")(routes.chat)
    app.post("/v1/completions")(routes.completions)

    async def answer(request: Request, error: Exception) -> Response:
        """Count an error and answer with OpenAI's body."""
        answered = _api_error(request, error)
        admission.count_rejection(answered.status)
        return JSONResponse(answered.body, answered.status, headers=answered.headers)

    async def client_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)

    for kind in (ApiError, RequestValidationError, HTTPException, WorkerStopped, Exception):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(ClientGone, client_gone)
    return app


def _api_error(request: Request, error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case WorkerStopped():
            return ApiError(503, "the server is shutting down", code="shutting_down")
        case RequestValidationError():
            return _invalid_request(error)
        case HTTPException():
            problem = f"{request.method} {request.url.path}: {error.detail}"
            return ApiError(error.status_code, problem, code="unknown_url")
    return ApiError(500, f"{type(error).__name__}: {error}", code="internal_error")


def _invalid_request(error: RequestValidationError) -> ApiError:
    """Return an error that names the first wrong field; pydantic reports each kind of value that the field may have."""
    first, *others = error.errors()
    _, *place = first["loc"]
    field = ".".join(map(str, place)) or None
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"unknown parameter {field!r}; leave it out", code="unknown_parameter", param=field)
    problems = [expected(first), *(expected(other) for other in others if other["loc"][:2] == first["loc"][:2])]
    return invalid_value(f"{field or 'body'}: {'; or '.join(dict.fromkeys(problems))}", field)
