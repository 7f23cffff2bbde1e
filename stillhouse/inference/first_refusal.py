"""What is wrong with a model, its name, its key or its address, by the refusal of a request that says next to nothing.

Wordings are of public reports, which stand under their sellers' names in the tests.
"""

import re
from contextlib import aclosing
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Final

from stillhouse.errors import EndpointError
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.endpoint_health import EndpointHealth
from stillhouse.inference.failures import Failure, RequestFailed
from stillhouse.inference.refused_setting import refused_alike, setting_named
from stillhouse.inference.retry import RetryPolicy
from stillhouse.inference.transport import open_transport
from stillhouse.sellers import AZURE

_MAX_NAMED: Final = 5
_LIST_TIMEOUT_S: Final = 10.0
_ROUTE: Final = re.compile(r"/((chat/)?completions|responses|messages|embeddings|models)/?$")
_NO_MODEL: Final = re.compile(
    r"(model|deployment)\b.{0,160}(does not exist|not found|do not have access)|access to (the )?model"
    r"|model not (exist|found)|not a valid model|(unknown|invalid|no such|unable to access) model"
    r"|model identifier is invalid|^HTTP 404: model: ",
    re.IGNORECASE | re.DOTALL,
)
_IS_PAGE: Final = re.compile(r"<!doctype|</?html|</body", re.IGNORECASE)
_MOVED: Final = re.compile(r"has moved to (https?://\S+);")


def is_page(failure: Failure) -> bool:
    """Return whether a page for people came in place of an API's answer."""
    return _IS_PAGE.search(failure.message) is not None


def without_route(address: str) -> str:
    """Return an address without a route of the API at its end, such as `/chat/completions`."""
    return _ROUTE.sub("", address)


async def error_of(failure: Failure, endpoint: Endpoint, policy: RetryPolicy) -> EndpointError:
    """Return the error to end with after a harmless request failed for good: what is wrong, and its setting."""
    url, message = endpoint.base_url, failure.message.rstrip(".")
    if moved := _MOVED.search(message):
        return misplaced(endpoint, message, without_route(moved[1]))
    if "sent to HTTPS port" in message or re.search("WRONG_VERSION_NUMBER|record layer", message):
        scheme, _, rest = url.partition(":")
        return misplaced(endpoint, message, f"{'http' if scheme == 'https' else 'https'}:{rest}")
    may_name = failure.status in (400, 403, 404, 422, 500)
    if failure.is_of_settings or (may_name and setting_named(message, endpoint.role) is not None):
        return refused_alike(failure, endpoint, "model {} does not take what the config asks for: {}")
    if failure.status in (404, 405) or is_page(failure) or _NO_MODEL.search(message):
        return await _not_served(failure, endpoint)
    known = EndpointHealth(endpoint).fatal_error(failure, policy, started=0.0)
    return known or refused_alike(failure, endpoint, "model {} refuses even a question of one line: {}")


async def _not_served(failure: Failure, endpoint: Endpoint) -> EndpointError:
    """Return the error of a model, or of a whole API, that is not at this address."""
    url, model, section = endpoint.base_url.rstrip("/"), endpoint.model, endpoint.role.section
    message = f"HTTP {failure.status}: a page for people" if is_page(failure) else failure.message.rstrip(". ")
    remedy = f"Set {section}.model to its name there"
    if AZURE.is_at(url):
        # Its list of models is not one of deployments.
        remedy = f"At Azure {section}.model is the name of a deployment, in the resource of {section}.base_url"
    elif models := await _models(endpoint, url):
        nearest = sorted(models, key=lambda name: -SequenceMatcher(None, model.lower(), name.lower()).ratio())
        remedy = f"Did you mean {nearest[0]}? Of {len(models)} models the nearest are {', '.join(nearest[:_MAX_NAMED])}"
        if model in models:
            remedy = f"The list of models has it, so it does not chat, or is not this account's: change {section}.model"
    elif await _models(endpoint, other := url.removesuffix("/v1") if url.endswith("/v1") else f"{url}/v1"):
        return misplaced(endpoint, message, other)
    elif not _NO_MODEL.search(message):
        return misplaced(endpoint, message, "one that speaks OpenAI's API, up to and with /v1")
    return EndpointError(f"{url}: does not serve model {model!r} here: {message}. {remedy}", code="unknown-model")


def misplaced(endpoint: Endpoint, message: str, address: str) -> EndpointError:
    """Return the error of an endpoint whose address should be `address`."""
    text = f"{endpoint.base_url}: {message}. Set {endpoint.role.section}.base_url to {address}"
    return EndpointError(text, code="wrong-base-url")


async def _models(endpoint: Endpoint, base_url: str) -> list[str]:
    """Return the models that are listed below an address; empty where there is no list."""
    async with aclosing(open_transport(replace(endpoint, base_url=base_url), timeout_s=_LIST_TIMEOUT_S)) as client:
        try:
            return [str(model["id"]) for model in (await client.get("models")).body()["data"]]
        except (RequestFailed, TypeError, KeyError):
            return []
