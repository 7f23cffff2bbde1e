import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Reply = tuple[int, dict[str, str], str]


class Site:
    """A web site on loopback; `pages` maps a path to (status, headers, body), `seen` lists what was asked for."""

    def __init__(self) -> None:
        self.pages: dict[str, Reply] = {}
        self.raw: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.seen: list[str] = []
        self.num_at_once = 0
        self.most_at_once = 0
        self.delay_s = 0.0
        self._lock = threading.Lock()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site._serve(self)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            # A client that has read enough hangs up; that is no error of the site.
            def handle_error(self, *_: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def html(self, path: str, body: str) -> None:
        self.pages[path] = (200, {"Content-Type": "text/html; charset=utf-8"}, f"<html><body>{body}</body></html>")

    def redirect(self, path: str, to: str) -> None:
        self.pages[path] = (302, {"Location": to}, "")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.seen.append(handler.path)
            self.num_at_once += 1
            self.most_at_once = max(self.most_at_once, self.num_at_once)
        time.sleep(self.delay_s)
        path = handler.path.partition("?")[0]
        status, headers, body = self.pages.get(path, (404, {"Content-Type": "text/html"}, "nothing here"))
        status, headers, content = self.raw.get(path, (status, headers, body.encode()))
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)
        with self._lock:
            self.num_at_once -= 1


@pytest.fixture
def site() -> Iterator[Site]:
    opened = Site()
    yield opened
    opened.close()
