"""Serves deployments of `prefect.yaml` from this process: for a laptop, without pools and workers.

    python deployments/serve.py                          # those on the embedded models
    python deployments/serve.py distill/openrouter_sft   # these

Prefect's pages, schedules and `prefect deployment run` start runs, one at a time, each in its own process. Ctrl-C ends
them and pauses the schedules.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tasks.server.environment import set_defaults

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment

ROOT: Final = Path(__file__).resolve().parents[1]
DEFAULT_TAG: Final = "embedded"
HANDED_OVER: Final = "handed-over"


def deployments() -> dict[str, tuple[list[str], "RunnerDeployment"]]:
    """Tags and deployment by `FLOW/NAME`, of all that `prefect.yaml` describes."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.flows import load_flow_from_entrypoint
    from prefect.schedules import Schedule
    from prefect.types.entrypoint import EntrypointType

    from tasks.server.deploying import read_deployments

    known: dict[str, Any] = {}
    for entry in read_deployments(ROOT / "deployments" / "prefect.yaml", ROOT):
        if HANDED_OVER in entry["tags"]:
            # A flow that waits for another needs two processes; here there is one.
            continue
        flow = load_flow_from_entrypoint(entry["entrypoint"], use_placeholder_flow=False)
        deployment = flow.to_deployment(
            entry["name"],
            parameters=entry["parameters"],
            schedules=[Schedule(**schedule) for schedule in entry.get("schedules", ())],
            tags=entry["tags"],
            concurrency_limit=ConcurrencyLimitConfig(**entry["concurrency_limit"]),
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        known[f"{flow.name}/{entry['name']}"] = (entry["tags"], deployment)
    return known


def main() -> None:
    """Serves until Ctrl-C."""
    # Before Prefect, which reads its environment once, when it is imported.
    set_defaults()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="FLOW/NAME", help=f"deployments to serve; all tagged {DEFAULT_TAG}")
    options = parser.parse_args()
    known = deployments()
    if unknown := set(options.names) - set(known):
        parser.error(f"no such deployment: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    chosen = options.names or [name for name, (tags, _) in known.items() if DEFAULT_TAG in tags]

    from prefect import serve

    serve(*(known[name][1] for name in chosen), limit=1)


if __name__ == "__main__":
    main()
