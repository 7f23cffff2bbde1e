"""A key, followed through everything that a run writes."""

import os
import pickletools
from base64 import b64encode
from functools import partial
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

CANARY = "sk-canary-6f1d0c2b9a"
ESCAPED = "".join(f"\\u{ord(one):04x}" for one in CANARY)
PERCENT = "".join(f"%{ord(one):02X}" for one in CANARY)
BASE64 = b64encode(f"Bearer {CANARY}".encode()).decode()
SPELLINGS = (CANARY, ESCAPED, PERCENT, BASE64, CANARY.encode().hex())
ROWS = [{"prompt": "What is 17 + 25?"}, {"prompt": "Who is there?"}, {"prompt": "Who moved?"}, {"prompt": "Say more."}]


def answer(request: ReceivedRequest, sent: set[str]) -> Reply:
    sent.add(request.authorization)
    question = request.body["messages"][-1]["content"]
    # An address in a header would be cut at a character that may not stand there.
    headers = {"x-request-id": f"{CANARY} {BASE64}", "x-ratelimit-limit-requests": "60"}
    if "17" in question:
        body = orjson.dumps(completion(f"It is 42. {PERCENT} {BASE64} ?")).replace(b"?", ESCAPED.encode())
        return Reply(body, headers=headers)
    if "more" in question:
        call = orjson.dumps(completion(tool_calls=[("calculator", '{"expression": "?"}')]))
        return Reply(call.replace(b"?", ESCAPED.replace("\\", "\\\\").encode()), headers=headers)
    if "moved" in question:
        return Reply(b"", 301, {**headers, "location": f"https://models.example/{CANARY}?key={PERCENT}"})
    body = orjson.dumps({"error": {"message": f"the key {CANARY} ? {BASE64} may not ask this", "code": "?"}})
    return Reply(body.replace(b"?", ESCAPED.encode()), 400, headers)


def folder_of_the_servers_database() -> Path:
    from prefect.settings import get_current_settings

    address = get_current_settings().server.database.connection_url
    assert address is not None
    return Path(address.get_secret_value().removeprefix("sqlite+aiosqlite:///")).parent


def written(*folders: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


def _readable(path: Path, content: bytes) -> bytes:
    """Return the text with what a Parquet file has compressed."""
    return content + (repr(pq.read_table(path).to_pylist()).encode() if path.suffix == ".parquet" else b"")


def spelled_in(content: bytes) -> list[str]:
    unescaped = content.replace(b"\\\\u", b"\\u")
    return [one for one in SPELLINGS if one.encode() in content or one.encode() in unescaped]


def _is_pickle(content: bytes) -> bool:
    if not content.startswith(b"\x80") or not content.endswith(b"."):
        return False
    try:
        return bool(list(pickletools.genops(content)))
    except ValueError:
        return False


def test_a_run_writes_neither_its_key_nor_a_pickle(
    generate_from,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("STILLHOUSE_TEST_KEY", CANARY)
    sent: set[str] = set()
    with SimulatedProvider(partial(answer, sent=sent)) as provider, caplog.at_level("DEBUG"):
        generate_from(
            provider.url, ROWS, tracking={"enabled": True}, rollouts={"max_turns": 2}, runtime={"failure_budget": 1.0}
        )
    # Without this the search below would find nothing whatever the code did.
    assert sent == {f"Bearer {CANARY}"}
    files = written(tmp_path, Path(os.environ["PREFECT_HOME"]), folder_of_the_servers_database())
    names = {path.name for path in files}
    assert {"mlflow.db", "journal.sqlite3", "prefect-test.db"} <= names
    assert any(b"may not ask this" in content for content in files.values())
    assert any(b"has moved to https://models.example/***" in content for content in files.values())
    assert any(path.name == "train.parquet" and b"It is 42. *** " in _readable(path, files[path]) for path in files)
    found = {path: spelled_in(_readable(path, content)) for path, content in files.items()}
    assert {path: spelled for path, spelled in found.items() if spelled} == {}
    assert spelled_in(("".join(capfd.readouterr()) + caplog.text).encode()) == []
    assert [path for path, content in files.items() if _is_pickle(content) or b"gASV" in content] == []
