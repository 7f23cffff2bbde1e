"""Creates and updates the deployments of `deployments/prefect.yaml` on a server that runs; from the project's root.

    python -m deployments.deploy demo nightly      # those of these configs, and those that name no config; or `all`
    python -m deployments.deploy nightly --reset   # and take everything from the files again

What a person set on Prefect's pages stays: the state of schedules, schedules of their own, keys of the config, tags,
pool and all else. To know it, each deployment keeps, in the schema of its form, what the files said when it was
deployed. A config that is wrong stops its own deployments alone.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import PrefectHTTPStatusError
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from deployments.forms import folded
from deployments.known import automations_with, create, find, unfinished_run, update, values_of
from deployments.merging import Merge, merge, take
from deployments.pools import connected
from deployments.prefect_file import Entry, read_entries
from stillhouse.config import parse_config
from stillhouse.config.form import unfolded
from stillhouse.config.suggest import nearest
from stillhouse.errors import ConfigError
from stillhouse.types import JsonObject
from stillhouse.version import code_version
from tasks.server.deploying import form_values

ALL: Final = "all"
DEPLOYED: Final = "x-stillhouse-deployed"
"""The key of a form's schema below which a deployment keeps what the files said."""


def select(entries: list[Entry], configs: list[str]) -> list[Entry]:
    """Return the deployments of these configs and those of none. Raises ConfigError for a config that has none."""
    known = sorted({name for entry in entries for name in entry.configs.values()})
    for name in configs:
        if name != ALL and name not in known:
            close = nearest(name, known)
            hint = f"did you mean {close}?" if close else f"expected {ALL}, or of {', '.join(known)}"
            raise ConfigError(f"CONFIGS={name}: no deployment in deployments/prefect.yaml runs that config; {hint}")
    return [
        entry
        for entry in entries
        if ALL in configs or not entry.configs or not set(configs).isdisjoint(entry.configs.values())
    ]


def deploy(client: SyncPrefectClient, entry: Entry, former: str | None, *, reset: bool) -> str:
    """Create or update a deployment and say what became of it. Raises ConfigError.

    One that is there under the name `former` is replaced, and what was set there is kept.
    """
    flow = load_flow_from_entrypoint(entry.entrypoint, use_placeholder_flow=False)
    name = f"{flow.name}/{entry.name}"
    found, old = find(client, name), find(client, f"{flow.name}/{former}") if former else None
    if old and (run := unfinished_run(client, old)):
        raise ConfigError(
            f"{flow.name}/{former}: {name} is to take its place, and its run {run.name} is not over. Wait for it or "
            "cancel it, then deploy again"
        )
    file = entry.values()
    merged = _merge(found or old, file, reset=reset)
    if merged.kept and entry.configs:
        parse_config(deepcopy(merged.values["parameters"]["config"]), origin=f"{name} with what was set on its page")
    code = _code(flow, entry, file, merged.values["parameters"].get("config"))
    done = ["created" if found is None else "updated"]
    if found is None:
        create(client, flow.name, entry.name, merged.values, code)
    elif _normal(values_of(found)) == merged.values and found.model_dump(include=set(code)) == code:
        done = ["unchanged"]
    else:
        update(client, found, merged.values, code)
    if old:
        client.delete_deployment(old.id)
        done.append(f"takes the place of {flow.name}/{former}")
        done += [f"choose it anew in the automation {other}" for other in automations_with(client, old)]
    return f"{name}: {'; '.join([*done, *merged.told()])}"


def _code(flow: Flow[..., Any], entry: Entry, file: JsonObject, config: JsonObject | None) -> JsonObject:
    """Return what no person sets on a page."""
    schema = parameter_schema(flow).model_dump(exclude_unset=True)
    form = folded(schema, config) if config else schema
    return {
        "entrypoint": entry.entrypoint,
        "version": code_version(),
        "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": str(Path.cwd())}}],
        "parameter_openapi_schema": {**form, DEPLOYED: file},
    }


def _merge(known: DeploymentResponse | None, file: JsonObject, *, reset: bool) -> Merge:
    if known is None:
        return Merge(file)
    page = _normal(values_of(known))
    return take(page, file) if reset else merge((known.parameter_openapi_schema or {}).get(DEPLOYED), page, file)


def _normal(page: JsonObject) -> JsonObject:
    """Return the values with the config as one from a file, where Prefect's form also writes what it does not show."""
    parameters = dict(page["parameters"])
    # What is no config of this version is compared as it stands.
    with suppress(ConfigError):
        if "config" in parameters:
            config = unfolded(deepcopy(parameters["config"]))
            parameters["config"] = form_values(parse_config(config, origin="page"))
    return {**page, "parameters": parameters}


def main(arguments: Sequence[str] | None = None) -> None:
    """Deploy what is asked for, each by itself, and say what was done or what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+", metavar="CONFIG", help=f"the stem of a file below configs/, or {ALL}")
    parser.add_argument("--reset", action="store_true", help="take what was set on the pages from the files again")
    options = parser.parse_args(arguments)
    try:
        entries = read_entries()
        selected = select(entries, options.configs)
    except ConfigError as error:
        sys.exit(str(error))
    named = {(entry.entrypoint, entry.name) for entry in entries}
    wrong: defaultdict[str, list[str]] = defaultdict(list)
    with connected() as client:
        for entry in selected:
            # Until deployments had names of their own, each was called as its config.
            former = next((name for name in entry.configs.values() if (entry.entrypoint, name) not in named), None)
            try:
                said = deploy(client, entry, former, reset=options.reset)
            except (ConfigError, PrefectHTTPStatusError) as error:
                wrong[_reason(error)].append(entry.name)
            else:
                print(said)  # noqa: T201
    for reason, names in wrong.items():
        print(f"{reason} (not deployed: {', '.join(names)})", file=sys.stderr)  # noqa: T201
    sys.exit(1 if wrong else 0)


def _reason(error: Exception) -> str:
    if not isinstance(error, PrefectHTTPStatusError):
        return str(error)
    if error.response.status_code == 401:
        raise error
    answer = error.response.json()
    return f"{error.request.url}: {answer.get('detail') or answer.get('exception_detail') or error}".replace("\n", " ")


if __name__ == "__main__":
    main()
