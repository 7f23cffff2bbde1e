"""Web pages, and how they are fetched over plain HTTP, without running their scripts."""

import asyncio
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import httpx

from stillhouse.http.bodies import BodyRefused, adecoded
from stillhouse.tools.network.guard import REQUEST_FAILED, Guard, guarded_client

MAX_PAGE_CHARACTERS: Final = 5_000_000
"""Longest page that is converted; the rest is dropped."""

HTML_TYPES: Final = ("", "text/html", "application/xhtml+xml")
"""Content types of HTML; a page without a content type counts as HTML."""

_TEXT_TYPES: Final = ("text/", "application/json", "application/xml", "application/xhtml+xml", "application/rss+xml")
_HEADERS: Final = {"User-Agent": "Mozilla/5.0 (compatible; Stillhouse)", "Accept": "text/html,text/*;q=0.9,*/*;q=0.5"}
_META_CHARSET: Final = re.compile(rb"<meta[^>]+charset=[\"']?([\w-]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WebPage:
    url: str
    """Its URL after redirects."""
    content_type: str
    """Without parameters, in lower case; empty if there is none."""
    text: str
    """HTML, or the body of another text type."""


class PageUnavailable(Exception):
    """A page cannot be fetched; the message is for the model."""


def require_text(url: str, status: int, content_type: str) -> str:
    """Return the content type without parameters; raise PageUnavailable for an error's status, or if it is no text."""
    kind = content_type.partition(";")[0].strip().lower()
    if status >= 400:
        phrase = f" ({HTTPStatus(status).phrase})" if status in list(HTTPStatus) else ""
        raise PageUnavailable(f"{url} answered HTTP {status}{phrase}")
    if kind and not kind.startswith(_TEXT_TYPES):
        raise PageUnavailable(f"{url} is not text but {kind}")
    return kind


class HttpFetcher:
    """Fetches pages with httpx under the guard; bodies are read and decoded up to a bound."""

    def __init__(self, guard: Guard, timeout_s: float) -> None:
        self._guard = guard
        self._timeout_s = timeout_s

    async def get(self, url: str) -> WebPage:
        """Return the page at an http or https URL; raise PageUnavailable, or what `Guard.addresses` raises."""
        try:
            # A client per page: pages must not share cookies, and connections are not kept anyway.
            async with (
                asyncio.timeout(self._timeout_s),
                guarded_client(self._guard, self._timeout_s) as client,
                client.stream("GET", url, headers=_HEADERS) as response,
            ):
                final_url = str(response.url)
                content_type = require_text(final_url, response.status_code, response.headers.get("content-type", ""))
                body = bytearray()
                async for piece in adecoded(response.headers, response.aiter_raw()):
                    body += piece
                    if len(body) >= MAX_PAGE_CHARACTERS:
                        break
        except (TimeoutError, httpx.TimeoutException) as error:
            raise PageUnavailable(f"{url} did not answer within {self._timeout_s:g} s") from error
        except BodyRefused as error:
            raise PageUnavailable(f"{url} could not be loaded: the answer {error}") from error
        except httpx.TooManyRedirects as error:
            raise PageUnavailable(f"{url} redirects without end") from error
        except REQUEST_FAILED as error:
            raise PageUnavailable(f"{url} could not be loaded: {error or type(error).__name__}") from error
        return WebPage(final_url, content_type, _decode(bytes(body[:MAX_PAGE_CHARACTERS]), response.charset_encoding))

    async def close(self) -> None:
        """Do nothing: nothing is open."""


def _decode(body: bytes, charset: str | None) -> str:
    """Return the text in the charset of the header, else of a meta element, else UTF-8."""
    declared = _META_CHARSET.search(body[:2048])
    name = charset or (declared.group(1).decode("ascii") if declared else "utf-8")
    try:
        return body.decode(name, errors="replace")
    except LookupError:
        return body.decode("utf-8", errors="replace")
