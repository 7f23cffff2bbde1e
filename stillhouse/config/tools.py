"""Sections of the tools a model may call: functions, built-in ones, MCP servers."""

from typing import Literal, Self

from pydantic import Field, model_validator

from stillhouse.config.secrets import VariableName
from stillhouse.config.section import Section


class McpServerConfig(Section):
    """An MCP server whose tools are offered under their own names."""

    name: str = Field(min_length=1)
    """What messages and logs call it."""
    command: tuple[str, ...] = ()
    """Program and arguments of a server that speaks over stdio; empty for one behind `url`."""
    url: str | None = None
    """Address of a server that speaks streamable HTTP; None for one that is started by `command`."""
    allow: tuple[str, ...] = ()
    """Names of the tools to offer; empty offers all."""
    environment: tuple[str, ...] = ()
    """Names of environment variables that reach the program, beside PATH and HOME; it sees no other."""
    headers_env: dict[str, VariableName] = {}
    """HTTP headers whose values are in environment variables, as `Authorization: VARIABLE`."""
    timeout_s: float = Field(default=60.0, gt=0.0)
    """Longest run of one call in seconds."""
    stateless: bool = False
    """Calls do not depend on each other: all rollouts share one session; else each rollout gets its own."""

    @model_validator(mode="after")
    def _one_transport(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError(f"MCP server {self.name!r}: give either command or url")
        return self


class ToolsConfig(Section):
    """Tools the teacher and the student may call, and the user's rewards."""

    builtin: tuple[Literal["calculator", "browse", "search"], ...] = ()
    """Tools that come with Stillhouse."""
    file: str | None = None
    """Path of a Python file whose functions under `@tool` are offered; None offers none."""
    rewards_file: str | None = None
    """Path of a Python file whose functions under `@reward` score trajectories; None has none."""
    mcp: tuple[McpServerConfig, ...] = ()
    """MCP servers whose tools are offered."""
    timeout_s: float = Field(default=60.0, gt=0.0)
    """Longest run of one tool call in seconds, for tools that set none of their own."""
    environment: tuple[str, ...] = ()
    """Names of environment variables that reach sandboxed tools and `ToolArgs.environment`; no other does."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that `browse` and `search` may reach although they are private, as `name` or `name:port`."""
    browse_max_characters: int = Field(default=8000, ge=100)
    """Length at which a page's markdown is cut."""
    browse_with: Literal["auto", "browser", "http"] = "auto"
    """`browser` renders pages in Chromium, `http` only fetches them; `auto` takes Chromium where there is one."""
    search_url: str | None = None
    """SearXNG-compatible endpoint of `search`, such as `https://searx.example/search`."""

    @model_validator(mode="after")
    def _search_has_an_endpoint(self) -> Self:
        if "search" in self.builtin and self.search_url is None:
            raise ValueError("tools.builtin names search, but tools.search_url is not set: name a SearXNG endpoint")
        return self
