"""Runs a function of a user's file in a process of its own: `@tool(sandbox=True)`, `@reward(sandbox=True)`. Linux only.

    run --control socket--> server --fork--> supervisor --fork--> worker
     ^------------------ a socket pair for each call --------^

The server loads the file once and forks twice for each call, which costs about ten milliseconds. The supervisor holds
the worker to its limits; whatever the worker leaves behind becomes the supervisor's child and is killed. When the
caller gives up, or the run is gone, the socket closes and the supervisor ends the same way. A call begins in an empty
folder that is its HOME and is removed at its end; of the environment it sees PATH, LANG, HOME and what
`tools.environment` names. What it prints is dropped. Arguments and result travel as JSON.

This guards the run against a tool's accidents and keeps secrets out of its way. It is no wall against code written to
break out: the worker has the user's rights, can read the user's files and reach the network.
"""

from stillhouse.tools.sandbox.client import Sandbox, Sandboxed, SandboxFailed, Source, source_of

__all__ = ["Sandbox", "SandboxFailed", "Sandboxed", "Source", "source_of"]
