"""Runs a function of a user's file in a jail: `@tool(sandbox=True)`, `@reward(sandbox=True)`. Linux only.

The file is loaded once, outside the jail, by a fork server that sees PATH, LANG, HOME and the variables named in
`tools.environment`; each call then runs in a jail of its own, as `stillhouse.sandbox` describes. It starts in an empty
folder, its HOME, which is deleted at its end. It reaches the network and files only if the decorator names them
(`network=True`, `files=[...]`). What a call prints is dropped. Arguments and result are passed as JSON.
"""

from stillhouse.tools.sandbox.client import Sandbox, SandboxedFunction, SandboxFailed, sandboxed_function

__all__ = ["Sandbox", "SandboxFailed", "SandboxedFunction", "sandboxed_function"]
