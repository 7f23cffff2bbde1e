from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from stillhouse.config import ToolsConfig
from stillhouse.tools import Toolbox

TOOLS = '''
import ctypes, json, os, signal, socket, subprocess, sys, threading, time
from pathlib import Path
from pydantic import BaseModel
from stillhouse.tools import ToolArgs, ToolError, tool

print("loading: this must not be taken for an answer")
ENVIRONMENT_AT_LOAD = dict(os.environ)

class Point(BaseModel):
    x: int

@tool(sandbox=True)
def add(left: int, right: int = 1) -> int:
    """Sum."""
    print("this must not be taken for an answer")
    os.write(1, b"nor this")
    return left + right

@tool(sandbox=True)
async def move(point: Point, args: ToolArgs) -> dict[str, str]:
    """Moves a point."""
    return {"x": str(point.x + args.metadata["by"]), "type": type(point).__name__, "key": args.rollout_key}

@tool(sandbox=True)
def environment(args: ToolArgs) -> dict[str, dict[str, str]]:
    """What can be seen."""
    child = subprocess.run(["env", "-0"], capture_output=True, text=True, check=True).stdout
    started = dict(line.split("=", 1) for line in child.strip("\\0").split("\\0"))
    return {"now": dict(os.environ), "child": started, "load": ENVIRONMENT_AT_LOAD, "args": dict(args.environment)}

@tool(sandbox=True)
def where() -> dict[str, list[str] | str | int]:
    """Where it runs."""
    Path("left_behind").write_text("x")
    return {"cwd": os.getcwd(), "home": os.path.expanduser("~"), "files": os.listdir(), "pid": os.getpid()}

@tool(sandbox=True)
def explode() -> str:
    """Raises."""
    raise KeyError("nothing here")

@tool(sandbox=True)
def refuse() -> str:
    """Refuses."""
    raise ToolError("try another city")

@tool(sandbox=True)
def leave() -> str:
    """Ends the interpreter."""
    sys.exit(3)

@tool(sandbox=True)
def vanish() -> str:
    """Ends the process."""
    os._exit(4)

@tool(sandbox=True)
def crash() -> str:
    """Reads address 0."""
    return ctypes.string_at(0).decode()

@tool(sandbox=True)
def eat_memory() -> int:
    """Takes 2 GiB."""
    return len(bytearray(2 << 30))

@tool(sandbox=True)
def fill_disk() -> str:
    """Writes 200 MB."""
    with open("big", "wb") as file:
        for _ in range(200):
            file.write(bytes(1_000_000))
    return "written"

@tool(sandbox=True)
def talk(num_bytes: int) -> str:
    """A long result."""
    return "x" * num_bytes

def start_sleepers(mark: str) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)", mark]
    subprocess.Popen(sleeper)
    subprocess.Popen(sleeper, start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sleeper[0], sleeper)
        os._exit(0)
    os.wait()

@tool(sandbox=True, timeout_s=3)
def hang(mark: str) -> str:
    """Starts processes that get away, and never returns."""
    start_sleepers(mark)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Event().wait()
    return ""

@tool(sandbox=True)
def litter(mark: str) -> str:
    """Starts processes that get away, and returns."""
    start_sleepers(mark)
    time.sleep(1)
    return "done"

@tool(sandbox=True)
def bomb() -> str:
    """Forks for ever."""
    while True:
        if os.fork() == 0:
            time.sleep(0.001)

@tool(sandbox=True)
def look(paths: list[str]) -> dict[str, str]:
    """What lies at these paths."""
    found = {}
    for path in paths:
        try:
            found[path] = Path(path).read_text() if Path(path).is_file() else ",".join(sorted(os.listdir(path)))
        except OSError as error:
            found[path] = type(error).__name__
    return found

@tool(sandbox=True)
def connect(host: str, port: int) -> str:
    """Connects."""
    socket.create_connection((host, port), timeout=1)
    return "connected"

@tool(sandbox=True, network=True, files=["shown.txt", "shown"])
def open_look(host: str, port: int) -> list[str]:
    """Connects, and reads what the decorator names."""
    socket.create_connection((host, port), timeout=1)
    folder = Path(__file__).parent
    try:
        (folder / "shown.txt").write_text("changed")
    except OSError:
        return [(folder / "shown.txt").read_text(), (folder / "shown" / "deep.txt").read_text(), *os.listdir(folder)]
    return ["written"]

@tool(sandbox=True, max_concurrency=4)
def sleep(seconds: float) -> list[float]:
    """Sleeps, and says from when to when."""
    begun = time.monotonic()
    time.sleep(seconds)
    return [begun, time.monotonic()]
'''


@pytest.fixture
def tools_file(tmp_path: Path) -> Path:
    path = tmp_path / "tools.py"
    path.write_text(TOOLS)
    (tmp_path / "shown.txt").write_text("shown")
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "deep.txt").write_text("deep")
    return path


OpenToolbox = Callable[..., AbstractAsyncContextManager[Toolbox]]


@pytest.fixture
def open_toolbox(tools_file: Path) -> OpenToolbox:
    @asynccontextmanager
    async def opened(**config: object) -> AsyncIterator[Toolbox]:
        async with Toolbox.from_config(ToolsConfig.model_validate({"file": str(tools_file), **config})) as toolbox:
            yield toolbox

    return opened
