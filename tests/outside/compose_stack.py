"""The services of `deployments/compose.yaml` in containers of podman, by podman-compose."""

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from tests.outside.compose_secrets import SECRETS
from tests.outside.containers import ROOT, Containers

_PROJECT: Final = "stillhouse-outside"


class ComposeStack:
    """Starts services one by one: without systemd podman checks no health by itself, for which `depends_on` waits.

    podman-compose 1.6 takes no secret from the environment, so that each becomes a file; else the file is as shipped.
    """

    def __init__(self, containers: Containers, podman_compose: Path, folder: Path, ports: Mapping[str, int]) -> None:
        self._containers = containers
        text = (ROOT / "deployments" / "compose.yaml").read_text(encoding="utf-8")
        compose = yaml.safe_load(re.sub(r"(?<=[ \"])\./images/", f"{ROOT}/deployments/images/", text))
        for name in compose["secrets"]:
            file = folder / name
            file.write_text(SECRETS.get(name, ""), encoding="utf-8")
            compose["secrets"][name] = {"file": str(file)}
        for service in compose["services"].values():
            service.pop("build", None)
        file = folder / "compose.yaml"
        file.write_text(yaml.safe_dump(compose), encoding="utf-8")
        self._ports = dict(ports)
        self._command = [str(podman_compose), "--in-pod=false", "-p", _PROJECT, "-f", str(file)]
        self._env = {f"{name}_PORT": str(port) for name, port in ports.items()}
        self._env["PREFECT_UI_URL"] = self.url("PREFECT")

    def url(self, server: str) -> str:
        """Return the published address of PREFECT or MLFLOW."""
        return f"http://127.0.0.1:{self._ports[server]}"

    def images(self) -> set[str]:
        """Return the images that the services without a profile need, but for the project's own."""
        compose = yaml.safe_load((ROOT / "deployments" / "compose.yaml").read_text(encoding="utf-8"))
        services = (service for service in compose["services"].values() if "profiles" not in service)
        return {service["image"] for service in services if not service["image"].startswith("stillhouse:")}

    def start(self, service: str) -> None:
        """Start a service and wait until its own check calls it healthy."""
        self._compose("up", "--detach", "--no-build", "--no-deps", service)
        deadline = time.monotonic() + 300
        while self._check(service) != 0:
            assert time.monotonic() < deadline, f"{service} is not healthy: {self.log(service)}"
            time.sleep(1)

    def finish(self, service: str) -> None:
        """Start a service that ends, and wait for that."""
        self._compose("up", "--detach", "--no-build", "--no-deps", service)
        code = self._containers.run("podman", "wait", self._name(service)).stdout.strip()
        assert code == "0", self.log(service)

    def run_in(self, service: str, *command: str) -> str:
        """Return what a command says that runs in a service's container, with its secrets."""
        return self._containers.run("podman", "exec", self._name(service), "with-secrets", *command).stdout

    def variables(self, service: str) -> dict[str, str]:
        """Return what `podman inspect` shows of a container's environment."""
        [known] = json.loads(self._containers.run("podman", "inspect", self._name(service)).stdout)
        return dict(pair.split("=", 1) for pair in known["Config"]["Env"])

    def log(self, service: str) -> str:
        """Return the last that a container said."""
        done = self._containers.run("podman", "logs", "--tail", "60", self._name(service), check=False)
        return done.stdout + done.stderr

    def stop(self) -> None:
        """Remove containers, networks and volumes."""
        self._containers.run(*self._command, "down", "--volumes", "--timeout", "5", check=False, env=self._env)

    def _compose(self, *arguments: str) -> None:
        self._containers.run(*self._command, *arguments, env=self._env)

    def _check(self, service: str) -> int:
        done = self._containers.run("podman", "healthcheck", "run", self._name(service), check=False)
        # A service whose check is switched off is healthy once it runs.
        return 0 if "has no defined healthcheck" in done.stderr else done.returncode

    @staticmethod
    def _name(service: str) -> str:
        return f"{_PROJECT}_{service}_1"
