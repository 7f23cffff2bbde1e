"""The config that a deployment, a form or a schedule gives a flow run."""

from copy import deepcopy
from typing import Final

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext

from stillhouse.config import DistillConfig, parse_config
from stillhouse.config.form import unfolded
from stillhouse.types import JsonObject

_ORIGIN: Final = "the flow's parameter config"


def given_config(config: JsonObject) -> DistillConfig:
    """Return the config of this flow run. Raises ConfigError if it holds a wrong key or value.

    A schedule that was added on a page gives no more than what was changed in its form, and Prefect has that take the
    place of the whole config of the deployment: the rest is laid under it again.
    """
    context, config = FlowRunContext.get(), unfolded(deepcopy(config))
    flow_run = context and context.flow_run
    if flow_run and flow_run.auto_scheduled and flow_run.deployment_id:
        with get_client(sync_client=True) as client:
            whole = unfolded(client.read_deployment(flow_run.deployment_id).parameters.get("config", {}))
        # One with all sections is from the deployment itself.
        if whole.keys() - config.keys():
            config = _over(whole, config)
    return parse_config(config, origin=_ORIGIN)


def _over(whole: JsonObject, changed: JsonObject) -> JsonObject:
    both = {key: (whole.get(key), value) for key, value in changed.items()}
    return whole | {
        key: _over(old, new) if isinstance(old, dict) and isinstance(new, dict) else new
        for key, (old, new) in both.items()
    }
