"""Keys where a flow runs: in its environment, in `.env` there, or as Prefect's Secret blocks and Variables."""

import os
from collections.abc import Collection

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL

from stillhouse.config import DistillConfig, ModelRole
from stillhouse.keys import PLACES, read_env_file
from tasks.server.temporary_server import has_lasting_server


def variables_of(config: DistillConfig) -> tuple[str, ...]:
    """Return the variables that the config names for its endpoints, servers and tools."""
    runtime, judge, tools = config.runtime, config.dataset.judge, config.tools
    names = {runtime.api_key_env} if config.teacher.base_url else set()
    if judge.enabled and judge.model.base_url:
        names.add(ModelRole.JUDGE.key_variable(runtime))
    servers = (*config.on_policy.teachers, *config.sft.teachers)
    names |= {name for name in (config.on_policy.engine_api_key_env, *(one.api_key_env for one in servers)) if name}
    names.update(tools.environment, *((*one.environment, *one.headers_env.values()) for one in tools.mcp))
    return tuple(sorted(names))


def find_keys(variables: Collection[str]) -> None:
    """Set the variables that the environment lacks, for this process and its children, where they are found.

    A server that does not answer is no error, since the key may not be needed: the message about the key says so.
    """
    read_env_file(variables)
    missing = [name for name in variables if not os.environ.get(name)]
    if not missing or not has_lasting_server():
        return
    with get_client(sync_client=True) as client:
        for variable in missing:
            block, name, value = variable.lower().replace("_", "-"), variable.lower(), None
            place = f"Secret block `{block}` or Variable `{name}` on {PREFECT_API_URL.value()}"
            try:
                # `Secret.load` would make a number of a key of digits.
                value = client.read_block_document_by_name(block, "secret").data["value"]
                place = f"Secret block `{block}`"
            except ObjectNotFound:
                if (found := client.read_variable_by_name(name)) is not None:
                    value, place = found.value, f"Variable `{name}`"
            except httpx.HTTPError as error:
                place += f", which cannot be asked: {str(error).splitlines()[0]}"
            PLACES[variable] = place
            if value is not None:
                os.environ[variable] = str(value).strip()
