"""The whole flow in this process, as `stillhouse distill` runs it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from stillhouse.config import DistillConfig
from tasks.server.environment import quiet_console, set_defaults
from tasks.server.temporary_server import ensure_server

if TYPE_CHECKING:
    from tasks.publish import Published


def run_distill(config: DistillConfig, store: Path) -> "Published":
    """Runs the flow with Prefect's database beside the other results in `store`; raises as the flow.

    Call it in a process that has not imported Prefect, which reads the environment once.
    """
    os.environ.setdefault("PREFECT_HOME", str((store / "prefect").absolute()))
    set_defaults()
    quiet_console()
    # It ends with this process, which may be stopped from outside; Prefect's own would stay.
    ensure_server()
    from flows.distill import distill

    return distill(config)
