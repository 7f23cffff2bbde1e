import json
import threading
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

import pytest

CANARY = "sk-canary/0123456789+ABCDEF"


class Stranger:
    """A server on loopback that answers every request alike, as it is told to."""

    def __init__(self) -> None:
        self.status = 200
        self.reason: str | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.seen: list[str] = []
        stranger = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                stranger.seen.append(self.headers.get("Authorization", ""))
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(stranger.status, stranger.reason)
                sent = {"Content-Type": "application/json", "Content-Length": str(len(stranger.body))}
                for name, value in {**sent, **stranger.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(stranger.body)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            # A client that has read enough hangs up.
            def handle_error(self, *_: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    one = Stranger()
    yield one
    one.close()


class Canary(NamedTuple):
    """A key, its spellings, and whether one of them is in what was written."""

    key: str
    spellings: dict[str, str]
    in_text: Callable[[str | bytes], bool]


@pytest.fixture(scope="session")
def canary() -> Canary:
    return Canary(CANARY, SPELLINGS, leaks)


SPELLINGS = {
    "plain": CANARY,
    "JSON": "".join(f"\\u{ord(one):04x}" for one in CANARY),
    "one character in JSON": CANARY.replace("n", "\\u006E"),
    "slash of PHP": CANARY.replace("/", "\\/"),
    "percent": quote(CANARY, safe=""),
    "percent in small letters": quote(CANARY, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
    "all percent": "".join(f"%{ord(one):02x}" for one in CANARY),
    "base64": b64encode(CANARY.encode()).decode(),
    "base64 of Bearer": b64encode(f"Bearer {CANARY}".encode()).decode(),
    "base64 of a login": b64encode(f"me:{CANARY}".encode()).decode(),
    "base64 for addresses": urlsafe_b64encode(f"{CANARY}.".encode()).decode().rstrip("="),
    "hexadecimal": CANARY.encode().hex(),
}


def leaks(written: str | bytes) -> bool:
    """Whether the key is in a text in any of the spellings, escaped or not."""
    content = written.encode("utf-8", "surrogatepass") if isinstance(written, str) else written
    plain = content
    for code in {ord(one) for one in CANARY}:
        for escape in (f"\\u{code:04x}", f"\\u{code:04X}", f"\\x{code:02x}"):
            plain = plain.replace(escape.encode(), bytes([code]))
    texts = (content, plain, unquote_to_bytes(plain), plain.replace(b"\\", b""))
    forms = [form.encode() for form in (*SPELLINGS.values(), json.dumps(CANARY)[1:-1])]
    # Of base64, what stands before and behind the key may be another.
    forms += [form[4:-4] for name, form in zip(SPELLINGS, forms, strict=False) if "base64" in name]
    return any(form in text for form in forms for text in texts)
