"""What `serve.py` would serve: the same as `prefect.yaml`, but for what needs a second place."""

import importlib.util
from pathlib import Path

from tasks.server.deploying import read_deployments

ROOT = Path(__file__).resolve().parents[2]
SERVE = ROOT / "deployments" / "serve.py"


def test_a_laptop_serves_every_deployment_with_its_config_and_its_schedules() -> None:
    spec = importlib.util.spec_from_file_location("serve", SERVE)
    assert spec is not None
    assert spec.loader is not None
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)

    served = serve.deployments()
    entries = read_deployments(ROOT / "deployments" / "prefect.yaml", ROOT)
    wanted = [entry for entry in entries if "handed-over" not in entry["tags"]]
    assert len(served) == len(wanted) > 0
    for (name, (tags, deployment)), entry in zip(served.items(), wanted, strict=True):
        assert name.endswith(f"/{entry['name']}")
        assert deployment.entrypoint == entry["entrypoint"]
        assert tags == deployment.tags == entry["tags"]
        assert deployment.parameters == entry["parameters"]
        assert deployment.work_pool_name is None
        assert [s.slug for s in deployment.schedules] == [s["slug"] for s in entry.get("schedules", ())]
        assert deployment.concurrency_limit == entry["concurrency_limit"]["limit"]
