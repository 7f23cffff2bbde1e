"""Creates the work pools `cpu` and `gpu` where they are missing.

    python deployments/pools.py                  # flows run as processes of the worker's machine
    python deployments/pools.py kubernetes       # or `docker`: in containers

A pool that is there keeps its template, with what was changed in Prefect's pages, unless `--overwrite` is given.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import ObjectNotFound

TYPES: Final = ("process", "docker", "kubernetes")
LIMITS: Final = {"cpu": None, "gpu": 1}
"""Runs of a pool at once. A second GPU is a second place: `prefect work-pool set-concurrency-limit gpu 2`."""
DEFAULTS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("docker", "gpu"): {
        "image": "stillhouse:gpu",
        "shared_memory": "16g",
        "device_requests": [{"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]}],
    },
    ("kubernetes", "gpu"): {
        "image": "stillhouse:gpu",
        "shared_memory": "16Gi",
        "memory": "128Gi",
        "gpus": 1,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    },
}
"""Defaults of a pool that differ from its type's template, by type and pool."""

_TEMPLATES = Path(__file__).parent / "templates"


def job_template(kind: str, pool: str) -> dict[str, Any]:
    """Return the base job template of a pool, with the pool's own defaults."""
    template: dict[str, Any] = yaml.safe_load((_TEMPLATES / f"{kind}.yaml").read_text(encoding="utf-8"))
    for name, value in DEFAULTS.get((kind, pool), {}).items():
        template["variables"]["properties"][name]["default"] = value
    return template


@contextmanager
def connected() -> Iterator[SyncPrefectClient]:
    """Yield a client of Prefect's server; end the command with one line if there is none or it refuses the login."""
    with get_client(sync_client=True) as client:
        try:
            yield client
        except httpx.TransportError as error:
            sys.exit(f"{client.api_url}: no answer ({error}); start it by `make server`, or set PREFECT_API_URL")
        except httpx.HTTPStatusError as error:
            if error.response.status_code != HTTPStatus.UNAUTHORIZED:
                raise
            sys.exit(
                f"{client.api_url}: refuses the login; expected the server's own in PREFECT_API_AUTH_STRING, or beside "
                "it in the file server-login of PREFECT_HOME"
            )


def ensure_pool(client: SyncPrefectClient, pool: str, kind: str, *, overwrite: bool) -> str:
    """Create a pool or overwrite its template; return what was done."""
    template = job_template(kind, pool)
    try:
        existing = client.read_work_pool(pool)
    except ObjectNotFound:
        client.create_work_pool(
            WorkPoolCreate(name=pool, type=kind, base_job_template=template, concurrency_limit=LIMITS[pool])
        )
        return f"created, of type {kind}"
    if not overwrite:
        return f"there already, of type {existing.type}"
    if existing.type != kind:
        raise SystemExit(
            f"pool {pool} is of type {existing.type}: `prefect work-pool delete {pool}` makes room for {kind}"
        )
    client.update_work_pool(pool, WorkPoolUpdate(base_job_template=template))
    return "there already, its template written anew"


def main() -> None:
    """Create both pools and print what was done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("type", nargs="?", choices=TYPES, default="process", help="how workers start flows")
    parser.add_argument("--overwrite", action="store_true", help="write the template of a pool that is there anew")
    options = parser.parse_args()
    with connected() as client:
        for pool in LIMITS:
            print(f"pool {pool}: {ensure_pool(client, pool, options.type, overwrite=options.overwrite)}")  # noqa: T201


if __name__ == "__main__":
    main()
