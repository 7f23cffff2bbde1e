"""What to open or to type to see more of a run."""

import os
import shlex
import sys
from pathlib import Path

from prefect.runtime import flow_run

from tasks.run.run import Run


def pages_of(run: Run) -> dict[str, str]:
    """The commands of this environment, as they can be pasted."""
    scripts = Path(sys.executable).parent
    store = shlex.quote(near(run.context.store.root))
    pages = {"view": f"{near(scripts / 'stillhouse')} view {flow_run.name} --store {store}"}
    if run.record.pages.ui_command is not None:
        pages["MLflow"] = run.record.pages.ui_command.replace("mlflow ui", f"{near(scripts / 'mlflow')} ui")
    if run.record.pages.run is not None:
        pages["run in MLflow"] = run.record.pages.run
    if flow_run.ui_url is not None and os.environ.get("PREFECT_API_URL"):
        pages["Prefect"] = str(flow_run.ui_url)
    else:
        home = os.environ.get("PREFECT_HOME")
        setting = f"PREFECT_HOME={shlex.quote(near(Path(home)))} " if home else ""
        pages["Prefect"] = f"{setting}{near(Path(sys.executable))} -m tasks.server.prefect_server"
    return pages


def near(path: Path) -> str:
    """The path as a person in this folder would type it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
