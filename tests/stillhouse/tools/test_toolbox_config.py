import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from stillhouse.config import ToolsConfig
from stillhouse.tools import Toolbox

TOOLS = """
from stillhouse.tools import ToolArgs, tool

@tool
def see(args: ToolArgs) -> dict[str, str]:
    '''Sees.'''
    return dict(args.environment)
"""


@pytest.fixture
def config(tmp_path: Path) -> ToolsConfig:
    (tmp_path / "tools.py").write_text(TOOLS)
    return ToolsConfig(builtin=("calculator",), file=str(tmp_path / "tools.py"), environment=("NAMED", "NOT_SET"))


def test_equal_configs_share_a_toolbox_until_the_file_or_the_environment_changes(
    config: ToolsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Toolbox.from_config(config)
    assert Toolbox.from_config(config.model_copy()) is first
    monkeypatch.setenv("NAMED", "n")
    second = Toolbox.from_config(config)
    assert asyncio.run(second.call("see", "{}")).content == '{"NAMED":"n"}'
    (tmp_path / "tools.py").write_text(TOOLS.replace("def see", "def look"))
    assert Toolbox.from_config(config).names == ["calculator", "look"]
    assert second.names == ["calculator", "see"]


def test_packages_of_tools_that_are_not_configured_are_not_imported() -> None:
    program = (
        "import sys\n"
        "from stillhouse.config import ToolsConfig\n"
        "from stillhouse.tools import Toolbox\n"
        "Toolbox.from_config(ToolsConfig(builtin=('calculator',)))\n"
        "print(*{'mcp', 'crawl4ai', 'httpx', 'playwright'}.intersection(sys.modules))\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
