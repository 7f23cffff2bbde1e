"""What the trajectories of a prompt begin with."""

from stillhouse.agent.turns import first_messages
from stillhouse.chat.rendering import Prefixes
from stillhouse.tools.toolbox import Toolbox
from stillhouse.types import Prompt


def beginning(prompt: Prompt, toolbox: Toolbox, system_prompt: str | None) -> Prefixes:
    """The messages and tools of a prompt, up to the generation prompt.

    Args:
        prompt: may offer fewer tools than there are.
        toolbox: every tool configured.
        system_prompt: put before a prompt that has no system message; None adds none.
    """
    messages = first_messages(prompt, system_prompt)
    return Prefixes(messages, toolbox.select(prompt.tools).schemas(), [(len(messages), True)])
