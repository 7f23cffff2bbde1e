"""`Transport`: how the bytes of a request reach an endpoint, and those of its answer come back."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from stillhouse.inference.answer_body import value_of
from stillhouse.inference.endpoint import Endpoint, through_package
from stillhouse.inference.error_body import classify
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.rate_limit import RateLimits, read_limits

if TYPE_CHECKING:
    from stillhouse.inference.http_client import HttpClient


class HttpAnswer(NamedTuple):
    """An answer with HTTP 200, without the key that was sent."""

    content: bytes
    headers: Mapping[str, str]
    latency_s: float
    """From sending to the last byte."""
    limits: RateLimits | None = None
    """The endpoint's limits by the headers."""

    def body(self) -> Any:
        """Return the parsed JSON, in which NaN and infinities are numbers, or the text that is no JSON."""
        return json_or_text(self.content)


class Transport(Protocol):
    """Makes one attempt at one request."""

    async def post(self, path: str, body: object) -> HttpAnswer:
        """Return the answer to one POST of `body` to `path`, below `base_url`; raise RequestFailed for any other."""

    async def aclose(self) -> None:
        """Close the connections."""


def open_transport(endpoint: Endpoint, **options: Any) -> "HttpClient":
    """Return the client of this endpoint: the package `anthropic` or `openai` for a hosted one, else the plain one.

    Make it inside a running event loop; `options` are those of `HttpClient`.
    """
    # Commands without requests should not wait for the imports: a third of a second for aiohttp, one for `openai`.
    if endpoint.speaks_messages:
        from stillhouse.inference.anthropic_client import AnthropicClient

        return AnthropicClient(endpoint, **options)
    if through_package(endpoint.base_url, endpoint.client):
        from stillhouse.inference.openai_client import OpenAIClient

        return OpenAIClient(endpoint, **options)
    from stillhouse.inference.http_client import HttpClient

    return HttpClient(endpoint, **options)


def answered(status: int, headers: Mapping[str, str], content: bytes, latency_s: float) -> HttpAnswer:
    """Return the answer if its status is 200; raise RequestFailed for any other."""
    if status != 200:
        raise RequestFailed(refusal(status, headers, content))
    return HttpAnswer(content, headers, latency_s, read_limits(headers, datetime.now(UTC)))


def refusal(status: int, headers: Mapping[str, str], content: bytes) -> Failure:
    """Return the failure of an answer with another status than 200."""
    if 300 <= status < 400:
        message = f"HTTP {status}: the endpoint has moved to {headers.get('location')}; name that in base_url"
        return Failure(FailureKind.PERMANENT, message, status)
    return classify(status, headers, json_or_text(content), datetime.now(UTC))


def json_or_text(content: bytes) -> Any:
    try:
        return value_of(content)
    except (ValueError, RecursionError):
        return content.decode(errors="replace")
