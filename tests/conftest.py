import importlib
import importlib.metadata
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from email import message_from_bytes
from email.message import Message
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from stillhouse.sandbox.server import problem_with_jail

# Examples may take longer beside other tests; what is slow is no fault of the code.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than there are cores: a test of a flow mostly waits for its server and its processes."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture(scope="session")
def jail() -> None:
    """Skips what needs a jail where the kernel grants none."""
    problem = problem_with_jail()
    if problem is not None:
        pytest.skip(problem)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; ends with its module, as Playwright keeps an event loop running in this thread."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    path = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


Reply = tuple[int, dict[str, str], str | bytes]


class Site:
    """A web server on loopback. `pages` maps a path to (status, headers, body); other paths get the default reply."""

    def __init__(self) -> None:
        self.pages: dict[str, Reply] = {}
        self.status = 404
        self.reason: str | None = None
        self.content_type = "text/html"
        self.headers: dict[str, str] = {}
        self.body = b"nothing here"
        self.delay_s = 0.0
        self.seen: list[str] = []
        """Path and query of every request, in order."""
        self.authorizations: list[str] = []
        """The header `Authorization` of every request."""
        self.headers_seen: list[Any] = []
        self.cookies: list[str] = []
        self.forms: list[dict[str, Any]] = []
        """Of requests with a form: its fields, the name of its file, and the request's transfer encoding."""
        site = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                site._answer(self)

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

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.seen.append(handler.path)
        self.authorizations.append(handler.headers.get("Authorization", ""))
        self.headers_seen.append(handler.headers)
        self.cookies.append(handler.headers.get("Cookie", ""))
        sent = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        if handler.headers.get_content_type() == "multipart/form-data":
            self.forms.append(_form(handler.headers, sent))
        time.sleep(self.delay_s)
        default = (self.status, {"Content-Type": self.content_type, **self.headers}, self.body)
        status, headers, body = self.pages.get(handler.path.partition("?")[0], default)
        content = body.encode() if isinstance(body, str) else body
        handler.send_response(status, self.reason)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)


def _form(headers: Message, content: bytes) -> dict[str, Any]:
    head = f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode()
    parts = message_from_bytes(head + content, policy=HTTP).iter_parts()
    fields, name = {}, None
    for part in parts:
        fields[part.get_param("name", header="content-disposition")] = part.get_payload(decode=True)
        name = part.get_filename() or name
    return {"fields": fields, "name": name, "encoding": headers.get("Transfer-Encoding", "")}


@pytest.fixture
def site() -> Iterator[Site]:
    server = Site()
    yield server
    server.close()


class ObjectStorage:
    """S3 on loopback, by moto, with a bucket for each test; its clients find it by their usual variables."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.asked: list[tuple[str, str]] = []
        """Method and path of every request, in order."""
        self.num_refusals = 0
        """So many requests to come are answered with 503."""
        self.hold: Callable[[str, str], bool] = lambda method, path: False
        """Requests of which it says so do nothing, and are not answered before the test ends."""
        self.held = threading.Event()
        self.release = threading.Event()

    def __call__(self, app: Any) -> Any:
        """The WSGI application `app` with what is said above."""

        def handle(environ: dict[str, Any], start_response: Any) -> Any:
            request = environ["REQUEST_METHOD"], environ["PATH_INFO"]
            self.asked.append(request)
            if self.hold(*request):
                self.held.set()
                self.release.wait()
            elif not self.num_refusals:
                return app(environ, start_response)
            else:
                self.num_refusals -= 1
            start_response("503 Slow Down", [("Content-Type", "text/plain")])
            return [b""]

        return handle

    def client(self) -> Any:
        """A client of boto3, which shares nothing with the one that is tested."""
        import boto3

        return boto3.client("s3", region_name="us-east-1")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[ObjectStorage]:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    storage = ObjectStorage()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, storage(DomainDispatcherApplication(create_backend_app)), threaded=True)
    storage.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield storage
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def s3(s3_server: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStorage]:
    """S3 with an empty bucket called `bucket`, as this process and its children see it."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    client = s3_server.client()
    if any(bucket["Name"] == "bucket" for bucket in client.list_buckets()["Buckets"]):
        for entry in client.list_objects_v2(Bucket="bucket").get("Contents", ()):
            client.delete_object(Bucket="bucket", Key=entry["Key"])
    else:
        client.create_bucket(Bucket="bucket")
    s3_server.asked.clear()
    s3_server.held.clear()
    s3_server.release.clear()
    yield s3_server
    s3_server.num_refusals, s3_server.hold = 0, lambda method, path: False
    s3_server.release.set()


@pytest.fixture(scope="session")
def shop_config() -> Callable[..., dict[str, Any]]:
    """The config of a nightly distillation that may promote its student, with changes to its sections."""

    def make(prompts: Path, store: Path, url: str, /, **changes: dict[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "prompts": {"source": str(prompts), "held_out_fraction": 0.35, "verifier": "numeric"},
            "teacher": {"model": "simulated", "base_url": url},
            "rollouts": {"max_tokens": 48, "max_turns": 6},
            "tools": {"builtin": ["calculator"]},
            "dataset": {"validation_fraction": 0.0},
            "student": {"parameters": "full", "dtype": "float32", "max_length": 512},
            "sft": {"num_epochs": 6, "batch_size": 16, "learning_rate": 5e-4, "trainer": {"schedule": "linear"}},
            "evaluation": {"max_tokens": 48, "max_turns": 6},
            "promotion": {"enabled": True, "start_from_champion": True, "min_prompts": 80},
            "tracking": {"register_as": "shop"},
            # A loaded machine is slow enough for a request to be sent twice.
            "runtime": {"store": str(store), "num_threads": 1, "device": "cpu", "hedge": False},
        }
        for name, section in changes.items():
            body[name] |= section
        return body

    return make


@pytest.fixture
def batch_server() -> Iterator[Any]:
    """A `BatchServer`."""
    # Here, since it needs aiohttp, which a machine that only trains does not have.
    from tests.batch_server import BatchServer, serve_batches

    with serve_batches(BatchServer()) as server:
        yield server


@pytest.fixture(scope="session")
def rnow_models() -> Any:
    """The module `rnow.models` of rnow itself, which users' files find in another form where it is not installed."""
    try:
        importlib.metadata.distribution("rnow")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("pip install --no-deps rnow tries it against rnow itself")
    return importlib.import_module("rnow.models")
