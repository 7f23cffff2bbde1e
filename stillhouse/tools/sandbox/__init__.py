"""Runs a function of a user's file in a jail: `@tool(sandbox=True)`, `@reward(sandbox=True)`. Linux only.

The file is loaded once, outside the jail, by a server that sees PATH, LANG, HOME and the variables that
`tools.environment` names; each call then runs in a jail of its own, as `stillhouse.sandbox` describes. It begins in an
empty folder that is its HOME and is gone at its end. The network and files are out of reach unless the decorator names
them (`network=True`, `files=[...]`). What a call prints is dropped. Arguments and result travel as JSON.
"""

from stillhouse.tools.sandbox.client import Sandbox, SandboxFailed
from stillhouse.tools.sandbox.source import SandboxedFunction, sandboxed_function

__all__ = ["Sandbox", "SandboxFailed", "SandboxedFunction", "sandboxed_function"]
