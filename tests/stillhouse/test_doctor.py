import http.server
import threading
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from stillhouse.config import DistillConfig, parse_config
from stillhouse.doctor import examine
from stillhouse.inspection import Finding

KEY = "DOCTOR_TEST_KEY"


class _Guarded(http.server.BaseHTTPRequestHandler):
    """Answers GET /v1/models to whoever has the key, and any other GET to whoever logs in."""

    def do_GET(self) -> None:
        login = f"Basic {b64encode(b'admin:right').decode()}"
        known = "Bearer right" if self.path == "/v1/models" else login
        self.send_response(200 if self.headers.get("Authorization") == known else 401)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Guarded) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def endpoint(guarded: str) -> str:
    return f"{guarded}/v1"


@pytest.fixture(autouse=True)
def _no_prefect_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


def _config(store: Path, *overrides: str) -> DistillConfig:
    return parse_config({"runtime": {"store": str(store), "api_key_env": KEY}}, "test", overrides)


def _checks(config: DistillConfig) -> dict[str, Finding]:
    return {check.name: check for check in examine(config)}


def test_the_embedded_default_needs_neither_key_nor_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    checks = _checks(_config(tmp_path / "store"))
    assert not [check for check in checks.values() if check.ok is False]
    assert checks["API key"].ok is None
    assert checks["teacher"].detail.startswith("embedded:teacher (teacher@")
    assert {"prefect", "torch", "device", "store", "student"} <= checks.keys()


@pytest.mark.parametrize(("key", "key_ok", "endpoint_ok"), [("right", True, True), ("wrong", True, False)])
def test_an_endpoint_is_asked_with_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str, key: str, key_ok: bool, endpoint_ok: bool
) -> None:
    monkeypatch.setenv(KEY, key)
    checks = _checks(_config(tmp_path, f"teacher.base_url={endpoint}", "teacher.model=m"))
    assert (checks["API key"].ok, checks["teacher"].ok) == (key_ok, endpoint_ok)
    assert endpoint in checks["teacher"].detail
    assert not [check for check in checks.values() if key in check.detail]


def test_a_key_that_is_needed_and_absent_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    checks = _checks(_config(tmp_path, f"teacher.base_url={endpoint}"))
    assert (checks["API key"].ok, checks["API key"].detail) == (False, f"{KEY} is not set")


def test_judge_and_embeddings_are_asked_with_keys_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    monkeypatch.delenv("EMBEDDINGS_KEY", raising=False)
    monkeypatch.setenv("JUDGE_KEY", "right")
    section = f"{{enabled: true, model: {{model: m, base_url: '{endpoint}'}}}}"
    named = ["runtime.judge_api_key_env=JUDGE_KEY", "runtime.embeddings_api_key_env=EMBEDDINGS_KEY"]
    checks = _checks(_config(tmp_path, f"dataset.judge={section}", f"dataset.embeddings.base_url={endpoint}", *named))
    keys = {name: check.ok for name, check in checks.items() if name.startswith("API key")}
    assert keys == {f"API key {KEY}": None, "API key JUDGE_KEY": True, "API key EMBEDDINGS_KEY": False}
    assert (checks["judge"].ok, checks["embeddings"].ok) == (True, False)
    assert checks["teacher"].detail.startswith("embedded:teacher")


def test_a_key_that_several_models_share_is_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv(KEY, "right")
    checks = _checks(_config(tmp_path, f"dataset.embeddings.base_url={endpoint}"))
    assert (checks["API key"].detail, checks["embeddings"].ok) == (f"{KEY} is set", True)


def test_what_is_not_there_or_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    absent, taken = tmp_path / "absent", tmp_path / "store"
    taken.write_text("a file stands where the folder should be")
    overrides = ["dataset.judge.enabled=true", f"dataset.judge.model.model={absent}", f"student.model={absent}"]
    checks = _checks(_config(taken, *overrides))
    assert (checks["judge"].ok, checks["student"].ok, checks["store"].ok) == (False, False, False)
    assert "is not a folder" in checks["student"].detail
    assert str(taken) in checks["store"].detail


def test_a_server_of_prefect_or_mlflow_that_does_not_answer_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    checks = _checks(_config(tmp_path, "tracking.uri=http://127.0.0.1:9"))
    assert (checks["Prefect"].ok, checks["MLflow"].ok) == (False, False)
    assert "http://127.0.0.1:9/api/admin/version" in checks["Prefect"].detail


@pytest.mark.parametrize(("password", "ok"), [("right", True), ("wrong", False)])
def test_servers_that_ask_for_a_login_are_given_the_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: str, password: str, ok: bool
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", guarded)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
    monkeypatch.setenv("PREFECT_API_URL", f"{guarded}/api")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", f"admin:{password}")
    checks = _checks(_config(tmp_path))
    assert (checks["Prefect"].ok, checks["MLflow"].ok) == (ok, ok)
    assert password not in checks["MLflow"].detail + checks["Prefect"].detail
