"""What a model may call: functions under `@tool`, the built-in ones, and the toolbox that runs them."""

from stillhouse.tools.decorator import Tool, tool
from stillhouse.tools.toolbox import MALFORMED_TOOL_CALL, Toolbox, ToolResult

__all__ = ["MALFORMED_TOOL_CALL", "Tool", "ToolResult", "Toolbox", "tool"]
