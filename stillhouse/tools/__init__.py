"""Tools that a model may call and rewards that score it: functions under `@tool` and `@reward`, and what runs them."""

from stillhouse.tools.calls import MALFORMED_TOOL_CALL, ToolResult
from stillhouse.tools.context import RolloutScope, ToolArgs, ToolContext, ToolError
from stillhouse.tools.decorator import Tool, tool
from stillhouse.tools.reward_set import RewardScores, RewardSet
from stillhouse.tools.rewards import Reward, RewardArgs, reward
from stillhouse.tools.toolbox import Toolbox

__all__ = [
    "MALFORMED_TOOL_CALL",
    "Reward",
    "RewardArgs",
    "RewardScores",
    "RewardSet",
    "RolloutScope",
    "Tool",
    "ToolArgs",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "Toolbox",
    "reward",
    "tool",
]
