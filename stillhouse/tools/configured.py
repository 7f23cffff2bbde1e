"""The toolbox a config describes."""

import hashlib
import os
import threading
from pathlib import Path

from stillhouse.config import ToolsConfig
from stillhouse.tools.calculator import calculator
from stillhouse.tools.context import Closing
from stillhouse.tools.tool import Tool
from stillhouse.tools.toolbox import Toolbox
from stillhouse.tools.user_file import load_tools

_lock = threading.Lock()
_toolboxes: dict[tuple[object, ...], Toolbox] = {}


def toolbox_of(config: ToolsConfig) -> Toolbox:
    """The toolbox of a config, the same one for the same config and an unchanged file; see `Toolbox.from_config`."""
    environment = {name: os.environ[name] for name in config.environment if name in os.environ}
    key = (config.model_dump_json(), _file_digest(config.file), tuple(environment.items()))
    with _lock:
        if key not in _toolboxes:
            tools, resources = _parts(config)
            _toolboxes[key] = Toolbox(tools, timeout_s=config.timeout_s, environment=environment, resources=resources)
        return _toolboxes[key]


def _file_digest(file: str | None) -> str | None:
    path = None if file is None else Path(file).expanduser()
    return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None and path.is_file() else None


def _parts(config: ToolsConfig) -> tuple[list[Tool], list[Closing]]:
    tools: list[Tool] = []
    resources: list[Closing] = []
    # What a config does not name is not imported: a browser's packages and `mcp` take a second each.
    for name in config.builtin:
        if name == "calculator":
            tools.append(calculator)
        elif name == "browse":
            from stillhouse.tools.network.browse import Browse

            browse = Browse(config)
            tools.append(browse.tool)
            resources.append(browse)
        else:
            from stillhouse.tools.network.search import search_tool

            tools.append(search_tool(config))
    if config.file is not None:
        tools += load_tools(Path(config.file))
    if config.mcp:
        from stillhouse.tools.mcp_servers.tools import McpTools

        servers = McpTools(config.mcp)
        tools += servers.tools
        resources.append(servers)
    return tools, resources
