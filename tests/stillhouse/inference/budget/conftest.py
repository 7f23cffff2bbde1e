import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class ModelServer:
    """GET /v1/models on loopback."""

    def __init__(self) -> None:
        self.status = 200
        self.body: Any = {"data": []}
        self.keys: list[str | None] = []
        """Keys it was asked with, one a request."""
        self.url = ""


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    served = ModelServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.keys.append(self.headers.get("Authorization"))
            body = served.body if isinstance(served.body, bytes) else json.dumps(served.body).encode()
            self.send_response(served.status if self.path == "/v1/models" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield served
        server.shutdown()
        thread.join()
