from collections import Counter
from html.parser import HTMLParser

_LOADING = {"src", "srcset", "data", "poster", "action", "background", "xlink:href", "href"}


class Page(HTMLParser):
    """A page as a browser sees it: what it fetches, runs and shows."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self._in_row = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag == "tr":
            self.rows.append([])
            self._in_row = True
        for name, value in ((name, value or "") for name, value in attrs):
            if name == "id":
                self.ids.append(value)
            elif name in _LOADING:
                self.references.append(value)
                is_link = name == "href" and (tag == "a" or value.startswith("#"))
                (self.links if is_link else self.fetched).append(value)
            elif name.startswith("on"):
                self.handlers.append(name)

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr":
            self._in_row = False

    def handle_data(self, data: str) -> None:
        if text := data.strip():
            self.texts.append(text)
            if self._in_row:
                self.rows[-1].append(text)

    def row(self, first: str) -> list[str]:
        return next(row for row in self.rows if row and row[0] == first)
