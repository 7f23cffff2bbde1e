import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import McpServerConfig
from stillhouse.tools.context import RolloutScope, ToolContext
from stillhouse.tools.mcp_servers.tools import McpTools

SERVER = '''
import asyncio, json, os, socket, sys
from pathlib import Path
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

here, where = Path(sys.argv[1]), sys.argv[2]
server = MCPServer("shop", log_level="ERROR")
count = connecting = most_connecting = num_connects = 0

if (here / "changed").exists():
    @server.tool()
    def add(left: int, right: int, third: int) -> int:
        """Sum of three numbers."""
        return left + right + third
else:
    @server.tool()
    def add(left: int, right: int = 1) -> int:
        """Sum of two numbers."""
        return left + right

@server.tool()
def environment() -> str:
    """The variables this process sees."""
    return json.dumps(dict(os.environ))

@server.tool()
def count_up() -> int:
    """How often this process was asked."""
    global count
    count += 1
    return count

@server.tool()
def fail(why: str) -> str:
    """Always fails."""
    raise ToolError(why)

@server.tool()
def picture() -> list:
    """A picture and a word."""
    return [Image(data=b"x", format="png"), "word"]

@server.tool()
async def hang() -> str:
    """Never returns."""
    (here / "hanging").touch()
    await asyncio.sleep(3600)

def die_first_time(name):
    with open(here / name, "a") as file:
        file.write("called ")
    if (here / name).read_text().count("called") == 1:
        os._exit(1)
    return "second time"

@server.tool()
def write_and_die() -> str:
    """Ends the server the first time it is called."""
    return die_first_time("written")

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def read_and_die() -> str:
    """Ends the server the first time it is called."""
    return die_first_time("read")

@server.tool()
def connects() -> str:
    """How many connects there were, and the most at once."""
    return f"{num_connects} {most_connecting}"

async def refuse(send, request_id):
    """As a server answers that speaks only the revision without sessions."""
    error = {"code": -32022, "message": "unsupported protocol version", "data": {"supported": ["2026-07-28"]}}
    body = json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})

def watched(app):
    async def serve(scope, receive, send):
        global connecting, most_connecting, num_connects
        if scope["type"] != "http" or scope["method"] != "POST":
            return await app(scope, receive, send)
        if (here / "secret").exists() and dict(scope["headers"]).get(b"authorization") != b"Bearer shop":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            return await send({"type": "http.response.body", "body": b""})
        messages = [await receive()]
        is_connect = b'"initialize"' in messages[0]["body"]
        if is_connect and (here / "modern").exists():
            return await refuse(send, json.loads(messages[0]["body"])["id"])
        connecting += is_connect
        num_connects += is_connect
        most_connecting = max(most_connecting, connecting)
        await asyncio.sleep(0.02 * is_connect)
        async def again():
            return messages.pop() if messages else await receive()
        await app(scope, again, send)
        connecting -= is_connect
    return serve

if where == "stdio":
    server.run("stdio")
else:
    import uvicorn
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", int(where)))
    listening.listen(256)
    uvicorn.Server(uvicorn.Config(watched(server.streamable_http_app()), log_level="error")).run(sockets=[listening])
'''


CANNED = """
import http.server, json, sys
from pathlib import Path

here, where = Path(sys.argv[1]), sys.argv[2]
tools = [
    {"name": name, "inputSchema": {}, "icons": "none",
     "outputSchema": {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}}
    for name in json.loads((here / "results.json").read_text())
]

def answer(message):
    match message.get("method"):
        case "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "canned", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": tools}
        case "tools/call":
            result = json.loads((here / "results.json").read_text())[message["params"]["name"]]
        case _:
            return None
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = answer(json.loads(self.rfile.read(int(self.headers["Content-Length"])))) or b""
        self.send_response(200 if body else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.send_error(405)
    def log_message(self, *args):
        pass

if where == "stdio":
    for line in sys.stdin.buffer:
        if body := answer(json.loads(line)):
            sys.stdout.buffer.write(body + b"\\n")
            sys.stdout.buffer.flush()
else:
    http.server.ThreadingHTTPServer(("127.0.0.1", int(where)), Handler).serve_forever()
"""
"""A server whose tools, by name, answer what `results.json` beside it holds, word for word."""


class HttpServer:
    """An MCP server over streamable HTTP that a test can kill and start again on the same port."""

    def __init__(self, script: Path) -> None:
        self._script = script
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        self._process = subprocess.Popen([sys.executable, self._script, self._script.parent, str(self.port)])
        while self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("the MCP server ended")

    def kill(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return path


@pytest.fixture(params=["stdio", "http"])
def canned(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., McpServerConfig]]:
    """Yield a server that gives fixed results, by the name of the tool."""
    path, started = tmp_path / "canned.py", []
    path.write_text(CANNED)

    def make(results: dict[str, Any], **fields: Any) -> McpServerConfig:
        (tmp_path / "results.json").write_text(json.dumps(results))
        if request.param == "stdio":
            return McpServerConfig(name="canned", command=(sys.executable, str(path), str(tmp_path), "stdio"), **fields)
        started.append(HttpServer(path))
        return McpServerConfig(name="canned", url=started[0].url, stateless=True, **fields)

    yield make
    for server in started:
        server.kill()


@pytest.fixture
def stdio(script: Path) -> Callable[..., McpServerConfig]:
    """Return a server that is started as a process."""

    def make(**fields: Any) -> McpServerConfig:
        command = (sys.executable, str(script), str(script.parent), "stdio")
        return McpServerConfig(**{"name": "shop", "command": command, **fields})

    return make


@pytest.fixture
def http_server(script: Path) -> Iterator[HttpServer]:
    server = HttpServer(script)
    yield server
    server.kill()


class Rollouts:
    """Calls tools as rollouts do, each with what it keeps between its calls."""

    def __init__(self, tools: McpTools) -> None:
        self._tools = {tool.name: tool for tool in tools.tools}
        self._scopes: dict[str, RolloutScope] = {}

    def call(self, name: str, *, rollout: str = "first", **arguments: Any) -> str:
        return asyncio.run(self.start(name, rollout=rollout, **arguments))

    async def start(self, name: str, *, rollout: str = "first", **arguments: Any) -> str:
        scope = self._scopes.setdefault(rollout, RolloutScope(ToolContext(rollout)))
        return await self._tools[name].function(arguments, scope)

    def together(self, name: str, *calls: dict[str, Any]) -> list[str]:
        """Return the answers of calls that are started at the same time."""

        async def run() -> list[str]:
            return await asyncio.gather(*(self.start(name, **call) for call in calls))

        return asyncio.run(run())

    def end(self, rollout: str = "first") -> None:
        asyncio.run(self._scopes.pop(rollout).close())


@pytest.fixture
def offer() -> Iterator[Callable[..., Rollouts]]:
    """Offer the tools of a server to rollouts until the test ends."""
    offered: list[McpTools] = []

    def offer_tools(server: McpServerConfig, timeout_s: float = 60.0) -> Rollouts:
        offered.append(McpTools([server], timeout_s))
        return Rollouts(offered[-1])

    yield offer_tools
    for tools in offered:
        asyncio.run(tools.close())
