import asyncio
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

import pytest

from stillhouse.config import McpServerConfig
from stillhouse.inference.batch import BatchClient, BatchPace
from stillhouse.inference.budget.prices import listed_price
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.model_server import ModelServer
from stillhouse.inference.openai_client import OpenAIClient
from stillhouse.inference.sampling import ChatRequest, Sampling
from stillhouse.tools.mcp_servers.tools import McpTools

SAMPLING = Sampling(temperature=0.5, top_p=0.9, max_tokens=32, seed=7)
QUESTION: Any = [{"role": "user", "content": "hi"}]
CANARY = "sk-canary/0123456789+ABCDEF"


@pytest.fixture
def stranger(site) -> Any:
    """Return a `Site` that answers every request alike: 200 and JSON, unless a test says otherwise."""
    site.status, site.content_type = 200, "application/json"
    return site


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
    "JSON": "".join(f"\\u{ord(char):04x}" for char in CANARY),
    "one character in JSON": CANARY.replace("n", "\\u006E"),
    "slash of PHP": CANARY.replace("/", "\\/"),
    "percent": quote(CANARY, safe=""),
    "percent in small letters": quote(CANARY, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
    "all percent": "".join(f"%{ord(char):02x}" for char in CANARY),
    "base64": b64encode(CANARY.encode()).decode(),
    "base64 of Bearer": b64encode(f"Bearer {CANARY}".encode()).decode(),
    "base64 of a login": b64encode(f"me:{CANARY}".encode()).decode(),
    "base64 for addresses": urlsafe_b64encode(f"{CANARY}.".encode()).decode().rstrip("="),
    "hexadecimal": CANARY.encode().hex(),
}


def leaks(written: str | bytes) -> bool:
    """Return whether the key is in a text in any of the spellings, escaped or not."""
    content = written.encode("utf-8", "surrogatepass") if isinstance(written, str) else written
    plain = content
    for code in {ord(char) for char in CANARY}:
        for escape in (f"\\u{code:04x}", f"\\u{code:04X}", f"\\x{code:02x}"):
            plain = plain.replace(escape.encode(), bytes([code]))
    texts = (content, plain, unquote_to_bytes(plain), plain.replace(b"\\", b""))
    forms = [form.encode() for form in (*SPELLINGS.values(), json.dumps(CANARY)[1:-1])]
    # Of base64, what stands before and behind the key may be another.
    forms += [form[4:-4] for name, form in zip(SPELLINGS, forms, strict=False) if "base64" in name]
    return any(form in text for form in forms for text in texts)


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., Any]]:
    """Return, by name, what sends a key to an address and returns or raises what it makes of the answer."""

    async def chat(url: str, key: str, *, opened: Any = HttpClient, **limits: Any) -> Any:
        endpoint = Endpoint(url, "m", "m", key)
        async with aclosing(ModelClient(endpoint, opened(endpoint, timeout_s=20, **limits))) as client:
            return await client.complete(ChatRequest(QUESTION, [], SAMPLING))

    async def batch(url: str, key: str, kind: Any = "auto") -> Any:
        pace = BatchPace(gather_s=0.01, poll_s=0.01)
        endpoint = Endpoint(url, "m", "m", key, client=kind)
        async with aclosing(ModelClient(endpoint, BatchClient(endpoint, tmp_path, pace=pace))) as client:
            # What never says that the batch has ended is asked for as long as a batch may take.
            return await asyncio.wait_for(client.complete(ChatRequest(QUESTION, [], SAMPLING)), 2)

    def score(url: str, key: str, **limits: Any) -> Any:
        with closing(ModelServer(url, key, 20, **limits)) as server:
            return server.post("/v1/chat/completions", {"messages": QUESTION})

    def offer_tools(url: str, key: str) -> Any:
        monkeypatch.setenv("SHOP_KEY", f"Bearer {key}")
        return McpTools([McpServerConfig(name="shop", url=url, headers_env={"Authorization": "SHOP_KEY"})])

    return {
        "chat": lambda *args, **limits: asyncio.run(chat(*args, **limits)),
        "hosted chat": lambda *args, **limits: asyncio.run(chat(*args, opened=OpenAIClient, **limits)),
        "score": score,
        "price": lambda url, key: asyncio.run(listed_price(Endpoint(url, "m", "m", key))),
        "batch": lambda *args: asyncio.run(batch(*args)),
        "hosted batch": lambda url, key: asyncio.run(batch(url, key, "openai")),
        "mcp": offer_tools,
    }
