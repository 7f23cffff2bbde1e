"""What both ways of fetching a page give, and the ways in which there is none."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Protocol

MAX_PAGE_CHARACTERS: Final = 5_000_000
"""Longest page that is converted; what lies behind is dropped, far beyond any length that is shown to a model."""

HTML_TYPES: Final = ("", "text/html", "application/xhtml+xml")
"""Content types of HTML; a page that names none is taken for it."""

_TEXT_TYPES: Final = ("text/", "application/json", "application/xml", "application/xhtml+xml", "application/rss+xml")


@dataclass(frozen=True, slots=True)
class Page:
    """A page as it was fetched."""

    url: str
    """Where it was found, after redirects."""
    content_type: str
    """Without parameters, in lower case; empty where none was given."""
    text: str
    """HTML, or the body of another text type."""

    @property
    def is_html(self) -> bool:
        """True where `text` is HTML."""
        return self.content_type in HTML_TYPES


class NoPage(Exception):
    """There is no page to show; the message is fit for the model."""


class Pages(Protocol):
    """A way to fetch pages."""

    async def get(self, url: str) -> Page:
        """The page at an http or https URL.

        Raises:
            NoPage: it cannot be had, or is not text.
            AddressRefused, HostUnknown: as `Guard.addresses`.
        """
        ...

    async def close(self) -> None:
        """Releases what is open."""
        ...


def require_text(url: str, status: int, content_type: str) -> str:
    """The content type without its parameters.

    Raises:
        NoPage: the status is an error, or the content is not text.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if status >= 400:
        raise NoPage(f"{url} answered HTTP {status}{_phrase(status)}")
    if kind and not kind.startswith(_TEXT_TYPES):
        raise NoPage(f"{url} is not text but {kind}")
    return kind


def _phrase(status: int) -> str:
    try:
        return f" ({HTTPStatus(status).phrase})"
    except ValueError:
        return ""
