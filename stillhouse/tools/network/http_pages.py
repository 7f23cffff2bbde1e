"""Pages over plain HTTP: what the server sends, without running its scripts."""

import asyncio
import re
from typing import Final

import httpx

from stillhouse.http.bodies import BodyRefused, adecoded
from stillhouse.tools.network.guard import Guard
from stillhouse.tools.network.page import MAX_PAGE_CHARACTERS, NoPage, Page, require_text
from stillhouse.tools.network.pinned import REQUEST_FAILED, guarded_client

_HEADERS: Final = {"User-Agent": "Mozilla/5.0 (compatible; Stillhouse)", "Accept": "text/html,text/*;q=0.9,*/*;q=0.5"}
_META_CHARSET: Final = re.compile(rb"<meta[^>]+charset=[\"']?([\w-]+)", re.IGNORECASE)


class HttpPages:
    """Fetches pages with httpx under the guard; a body is read and decoded up to a bound, however long it is."""

    def __init__(self, guard: Guard, timeout_s: float) -> None:
        self._guard = guard
        self._timeout_s = timeout_s

    async def get(self, url: str) -> Page:
        """As `Pages.get`."""
        try:
            # A client a page: its cookies are no other page's, and connections are not kept anyway.
            async with (
                asyncio.timeout(self._timeout_s),
                guarded_client(self._guard, self._timeout_s) as client,
                client.stream("GET", url, headers=_HEADERS) as response,
            ):
                found = str(response.url)
                kind = require_text(found, response.status_code, response.headers.get("content-type", ""))
                body = await _read(response)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise NoPage(f"{url} did not answer within {self._timeout_s:g} s") from error
        except BodyRefused as error:
            raise NoPage(f"{url} could not be loaded: the answer {error}") from error
        except httpx.TooManyRedirects as error:
            raise NoPage(f"{url} redirects without end") from error
        except REQUEST_FAILED as error:
            raise NoPage(f"{url} could not be loaded: {error or type(error).__name__}") from error
        return Page(found, kind, _decode(body, response.charset_encoding))

    async def close(self) -> None:
        """As `Pages.close`; nothing is open."""


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for piece in adecoded(response.headers, response.aiter_raw()):
        body += piece
        if len(body) >= MAX_PAGE_CHARACTERS:
            break
    return bytes(body[:MAX_PAGE_CHARACTERS])


def _decode(body: bytes, charset: str | None) -> str:
    """The text in the charset of the header, else of a meta element, else UTF-8."""
    declared = _META_CHARSET.search(body[:2048])
    name = charset or (declared.group(1).decode("ascii") if declared else "utf-8")
    try:
        return body.decode(name, errors="replace")
    except LookupError:
        return body.decode("utf-8", errors="replace")
