import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.deployments.images.compose_secrets import SECRETS

Stages = dict[str, list[tuple[str, str]]]
ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "deployments" / "images"
BIN = Path(sys.executable).parent
NEEDED = ("postgres", "initdb", "psql", "pg_isready", "redis-server", "redis-cli")


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def images() -> Path:
    return IMAGES


@pytest.fixture(scope="session")
def stages() -> Stages:
    """Each stage's instructions with their arguments, those of the stages it begins from first."""
    stages: Stages = {}
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    name = ""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        instruction, _, arguments = line.strip().partition(" ")
        if instruction == "FROM":
            base, _, name = arguments.partition(" AS ")
            stages[name] = list(stages.get(base, [("FROM", base)]))
        elif instruction and name:
            stages[name].append((instruction, arguments))
    return stages


@pytest.fixture(scope="session")
def image_environment(stages: Stages) -> dict[str, str]:
    pairs = [pair for kind, text in stages["cpu"] if kind == "ENV" for pair in shlex.split(text)]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.fixture(scope="session")
def entry_point(stages: Stages) -> list[str]:
    """The image's entry point with this project's script and Python in the place of the image's."""
    if shutil.which("tini") is None:
        pytest.skip("not installed: tini")
    (entry,) = (json.loads(arguments) for kind, arguments in stages["cpu"] if kind == "ENTRYPOINT")
    here = {"tini": ["tini", "-s"], "with-secrets": [str(IMAGES / "with-secrets.sh")], "python": [sys.executable]}
    return [word for part in entry for word in here.get(part, [part])]


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    """The compose file after Compose's own substitution, `${NAME:-default}` and `$$`; no name may lack a default."""
    text = (ROOT / "deployments" / "compose.yaml").read_text(encoding="utf-8")
    pattern = r"\$(?:\$|\{\w+:-(?P<default>[^}]*)\})"
    filled = re.sub(pattern, lambda match: "$" if match["default"] is None else match["default"], text)
    assert "${" not in filled
    return yaml.safe_load(filled)


@pytest.fixture
def answering() -> Iterator[Callable[[int], str]]:
    """The address of a server on loopback that answers every request with a status."""
    servers: list[HTTPServer] = []

    def answer(status: int) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/"

    yield answer
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def known_variables() -> set[str]:
    """Names that Prefect, its Redis parts, MLflow, their libraries and our health check read from the environment."""
    from prefect.settings import Settings
    from prefect.settings.legacy import _get_valid_setting_names
    from prefect_redis.client import RedisMessagingSettings

    of_redis = {f"PREFECT_REDIS_MESSAGING_{name.upper()}" for name in RedisMessagingSettings.model_fields}
    mlflow = Path(find_spec("mlflow").submodule_search_locations[0])
    of_mlflow = set(re.findall(r"^(MLFLOW_\w+) =", (mlflow / "environment_variables.py").read_text(), re.MULTILINE))
    of_mlflow |= set(re.findall(r'envvar="(MLFLOW_\w+)"', (mlflow / "cli" / "__init__.py").read_text()))
    # Of libpq, the hub's client, LiteLLM (which crawl4ai brings) and the models' providers.
    others = {"PGPASSWORD", "HF_TOKEN", "LITELLM_LOCAL_MODEL_COST_MAP", "OPENAI_API_KEY", "OPENROUTER_API_KEY"}
    assert 'os.environ.get("HEALTH_URL")' in (IMAGES / "healthy.py").read_text(encoding="utf-8")
    return _get_valid_setting_names(Settings) | of_redis | of_mlflow | others | {"HEALTH_URL"}


class Stack:
    """Services of the compose file as processes of this machine: their commands, variables, secrets and checks.

    A container's own address and ports become loopback and free ones; everything else is what the file says.
    """

    def __init__(
        self,
        compose: dict[str, Any],
        image_environment: dict[str, str],
        entry_point: list[str],
        folder: Path,
        launch: Any,
        free_port: Callable[[], int],
    ) -> None:
        self.compose, self.folder = compose, folder
        self.image_environment, self.entry_point = image_environment, entry_point
        self.ports = {name: free_port() for name in ("postgres", "redis", "server", "mlflow", "worker", "gateway")}
        self.running: dict[str, Any] = {}
        self._launch = launch
        self.secrets = SECRETS
        for name in ("mlflow", "runs", "data"):
            (folder / name).mkdir()
        for name in ("configs", "deployments"):
            (folder / name).symlink_to(ROOT / name)
        auth = (IMAGES / "mlflow_auth.ini").read_text(encoding="utf-8")
        (folder / "mlflow_auth.ini").write_text(self.here(auth), encoding="utf-8")

    def here(self, text: str) -> str:
        """A value of the compose file as it is on this machine."""
        ports = self.ports
        changes = (
            (r"/app/deployments/images/mlflow_auth\.ini", str(self.folder / "mlflow_auth.ini")),
            (r"/app/", f"{self.folder}/"),
            (r"^/tmp/prefect$", f"{self.folder}/prefect"),
            (r"@postgres/", f"@127.0.0.1:{ports['postgres']}/"),
            (r"\bredis:6379", f"127.0.0.1:{ports['redis']}"),
            (r"(?<=//)(?:server|127\.0\.0\.1):4200", f"127.0.0.1:{ports['server']}"),
            (r"(?<=//)(?:mlflow|127\.0\.0\.1):5000", f"127.0.0.1:{ports['mlflow']}"),
            (r"127\.0\.0\.1:8080", f"127.0.0.1:{ports['worker']}"),
            (r"^4200$", str(ports["server"])),
            (r"^--port=5000$", f"--port={ports['mlflow']}"),
            (r"\b0\.0\.0\.0\b", "127.0.0.1"),
            (r"^postgres$", "127.0.0.1"),
        )
        for pattern, replacement in changes:
            text = re.sub(pattern, replacement, text)
        return text

    def environment(self, service: str) -> dict[str, str]:
        given = {
            name: self.here(str(value)) for name, value in self.compose["services"][service]["environment"].items()
        }
        image = {name: self.here(value) for name, value in self.image_environment.items() if name != "PATH"}
        machine = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "SECRETS_FOLDER": str(self._secrets(service)),
            "PREFECT_SERVER_DATABASE_PORT": str(self.ports["postgres"]),
            "PREFECT_WORKER_WEBSERVER_PORT": str(self.ports["worker"]),
        }
        return image | given | machine

    def _secrets(self, service: str) -> Path:
        folder = self.folder / f"secrets-{service}"
        folder.mkdir(exist_ok=True)
        for secret in self.compose["services"][service].get("secrets", []):
            source, target = (secret, secret) if isinstance(secret, str) else (secret["source"], secret["target"])
            (folder / target).write_text(self.here(SECRETS.get(source, "")), encoding="utf-8")
        return folder

    @staticmethod
    def status(url: str, login: str | None = None, headers: Mapping[str, str] | None = None) -> int:
        """The answer's HTTP status; `login` is NAME:PASSWORD."""
        auth = None if login is None else httpx.BasicAuth(*login.split(":", 1))
        return httpx.get(url, auth=auth, headers=headers, timeout=30, follow_redirects=True).status_code

    def _run(self, name: str, command: list[str], **how: Any) -> Any:
        self.running[name] = self._launch(command, self.folder / f"{name}.log", **how)
        return self.running[name]

    def start(self, service: str) -> Any:
        """Runs a service's own command through the image's entry point."""
        command = [self.here(part) for part in self.compose["services"][service]["command"]]
        return self._run(service, [*self.entry_point, *command], env=self.environment(service), cwd=self.folder)

    def is_healthy(self, service: str) -> bool:
        """What the image's own health check says of a service."""
        checked = subprocess.run(
            [str(BIN / "python"), str(IMAGES / "healthy.py")],
            env={"HEALTH_URL": self.environment(service)["HEALTH_URL"]},
            capture_output=True,
            check=False,
        )
        return checked.returncode == 0

    def start_databases(self) -> None:
        data = self.folder / "data"
        owner = "postgres" if os.getuid() == 0 else None
        if owner is not None:
            shutil.chown(data, owner)
        (self.folder / "password").write_text(SECRETS["POSTGRES_PASSWORD"], encoding="utf-8")
        self.folder.chmod(0o755)
        user = self.compose["services"]["postgres"]["environment"]["POSTGRES_USER"]
        initialise = ["initdb", f"--username={user}", "--auth=scram-sha-256", f"--pwfile={self.folder / 'password'}"]
        subprocess.run([*initialise, "-D", str(data)], user=owner, cwd=data, check=True, capture_output=True)
        command = ["postgres", "-D", str(data), "-p", str(self.ports["postgres"]), "-k", str(data), "-h", "127.0.0.1"]
        postgres = self._run("postgres", command, user=owner, cwd=data)
        address = ["--host=127.0.0.1", f"--port={self.ports['postgres']}", f"--username={user}"]
        postgres.wait_until(
            lambda: subprocess.run(["pg_isready", *address], capture_output=True, check=False).returncode == 0,
            "Postgres takes connections",
        )
        database = self.compose["services"]["postgres"]["environment"]["POSTGRES_DB"]
        for script in (f"CREATE DATABASE {database}", (IMAGES / "databases.sql").read_text(encoding="utf-8")):
            subprocess.run(
                ["psql", *address, "--dbname=postgres", "--set=ON_ERROR_STOP=1"],
                input=script.encode(),
                env={**os.environ, "PGPASSWORD": SECRETS["POSTGRES_PASSWORD"]},
                check=True,
                capture_output=True,
            )
        self._start_redis()

    def _start_redis(self) -> None:
        secrets = self._secrets("redis")
        service = self.compose["services"]["redis"]
        script = service["command"][2].replace("/run/secrets", str(secrets)).replace("dir /data", f"dir {self.folder}")
        script = script.replace("redis-server -", f"redis-server - --port {self.ports['redis']}")
        check = service["healthcheck"]["test"][1].replace("/run/secrets", str(secrets))
        check = check.replace("redis-cli", f"redis-cli -p {self.ports['redis']}")
        self._run("redis", ["sh", "-c", script]).wait_until(
            lambda: subprocess.run(["sh", "-c", check], check=False, timeout=30).returncode == 0, "Redis answers"
        )

    def start_gateway(self) -> str:
        """nginx with the gateway's own file before the server; its address."""
        text = (IMAGES / "gateway.conf").read_text(encoding="utf-8")
        text = text.replace("http://server:4200", f"http://127.0.0.1:{self.ports['server']}")
        text = text.replace("listen 4200", f"listen 127.0.0.1:{self.ports['gateway']}")
        folder = self.folder / "nginx"
        folder.mkdir()
        kept = [f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
        main = f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        main += f"http {{ access_log off; {' '.join(kept)}\n{text}\n}}\n"
        (folder / "nginx.conf").write_text(main, encoding="utf-8")
        gateway = self._run("gateway", ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")])
        address = f"http://127.0.0.1:{self.ports['gateway']}"
        gateway.wait_until(lambda: self._answers(f"{address}/api/health"), "the gateway passes requests on")
        return address

    def _answers(self, url: str) -> bool:
        with suppress(httpx.TransportError):
            return self.status(url) == 200
        return False

    def stop(self) -> None:
        postgres = self.running.pop("postgres", None)
        for launched in self.running.values():
            launched.kill()
        if postgres is not None:
            # What is killed leaves its shared memory behind.
            postgres.end(signal.SIGINT)


@pytest.fixture(scope="module")
def stack(
    compose: dict[str, Any],
    image_environment: dict[str, str],
    entry_point: list[str],
    launch: Any,
    free_port: Callable[[], int],
) -> Iterator[Stack]:
    """Postgres, Redis, Prefect and MLflow as the compose file starts them."""
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="stillhouse-stack-") as folder:
        stack = Stack(compose, image_environment, entry_point, Path(folder), launch, free_port)
        try:
            stack.start_databases()
            stack.start("migrate").finish()
            server, mlflow = stack.start("server"), stack.start("mlflow")
            server.wait_until(lambda: stack.is_healthy("server"), "Prefect is healthy")
            mlflow.wait_until(lambda: stack.is_healthy("mlflow"), "MLflow is healthy")
            yield stack
        finally:
            stack.stop()
