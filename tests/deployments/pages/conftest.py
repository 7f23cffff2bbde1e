"""A deployment that asks for approval, served by a process of its own, and the servers that know of it."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_SERVE = """
import sys
from tasks.server.environment import set_defaults
set_defaults()
from prefect.types.entrypoint import EntrypointType
from flows.train_sft import train_sft
from tasks.server.deploying import read_configs
parameters = {"config": read_configs("configs", sys.argv[1:])["smoke"]}
train_sft.serve(name="pages", parameters=parameters, entrypoint_type=EntrypointType.MODULE_PATH)
"""


@pytest.fixture(scope="module")
def deployment(prefect: Any, mlflow: Any, wait_until: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    config = [f"runtime.store={prefect.folder / 'store'}", f"tracking.uri={mlflow.url}", "approval.enabled=true"]
    with prefect.launch([sys.executable, "-c", _SERVE, *config], prefect.folder / "serve.log") as serving:
        serving.wait_until(lambda: prefect.post("deployments/filter", {}), "the deployment is there")
        (found,) = prefect.post("deployments/filter", {})
        yield found
