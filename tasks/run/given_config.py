"""The config that a deployment, a form or a schedule gives a flow run."""

from copy import deepcopy

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.utilities.collections import deep_merge

from stillhouse.config import DistillConfig, parse_config
from stillhouse.config.form import unfolded
from stillhouse.errors import ConfigError
from stillhouse.types import JsonObject


def given_config(config: JsonObject) -> DistillConfig:
    """Return the config of this flow run. Raise ConfigError if it holds a wrong key or value.

    A schedule that was added on a page gives no more than what was changed in its form, and Prefect has that take the
    place of the whole config of the deployment: the rest is laid under it again. A deployment that is gone is a
    ConfigError, too.
    """
    context, config = FlowRunContext.get(), unfolded(deepcopy(config))
    run = context and context.flow_run
    if run and run.auto_scheduled and run.deployment_id:
        try:
            with get_client(sync_client=True) as client:
                whole = unfolded(client.read_deployment(run.deployment_id).parameters.get("config", {}))
        except ObjectNotFound as error:
            raise ConfigError(
                "the deployment whose schedule began this run was deleted, and may have held a part of its config; run "
                "`make deploy`, and start the run from there"
            ) from error
        # One with all sections is from the deployment itself.
        config = deep_merge(whole, config) if whole.keys() - config.keys() else config
    return parse_config(config, origin="the flow's parameter config")
