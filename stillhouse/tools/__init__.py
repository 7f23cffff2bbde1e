"""What a model may call: functions under `@tool`, the built-in ones, and the toolbox that runs them."""

from stillhouse.tools.context import RolloutScope, ToolArgs, ToolContext, ToolError
from stillhouse.tools.decorator import tool
from stillhouse.tools.tool import Tool
from stillhouse.tools.toolbox import MALFORMED_TOOL_CALL, Toolbox, ToolResult

__all__ = [
    "MALFORMED_TOOL_CALL",
    "RolloutScope",
    "Tool",
    "ToolArgs",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "Toolbox",
    "tool",
]
