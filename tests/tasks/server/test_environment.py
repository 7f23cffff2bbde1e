import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tasks.server.environment import DEFAULTS

SHOW = "import json, os; from tasks.server.environment import DEFAULTS, set_defaults; set_defaults(); "
READ = """
from prefect.settings import get_current_settings as settings
server = settings().server
print(json.dumps({
    "serializer": settings().results.default_serializer,
    "results": str(settings().results.local_storage_path),
    "analytics": server.analytics_enabled,
    "startup_timeout_s": server.ephemeral.startup_timeout_seconds,
    "recorder": [server.services.task_run_recorder.read_batch_size, server.services.task_run_recorder.batch_size],
    "flush_s": server.services.task_run_recorder.flush_interval,
    "vacuum": sorted(server.services.db_vacuum.enabled),
    "heartbeat_s": settings().flows.heartbeat_frequency,
    "max_events": settings().events.worker_max_queue_size,
    "query_s": settings().worker.query_seconds,
    "default_query_s": DEFAULTS["PREFECT_WORKER_QUERY_SECONDS"],
    "loggers": list(settings().logging.extra_loggers),
}))
"""


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    bare = {name: value for name, value in os.environ.items() if name not in DEFAULTS and "PREFECT" not in name}
    return subprocess.run(command, cwd=folder, env={**bare, **environment}, capture_output=True, text=True, check=False)


def test_prefect_reads_every_default_but_what_the_environment_says_and_its_folder_is_made(tmp_path: Path) -> None:
    home = tmp_path / "runs" / "prefect"
    command = [sys.executable, "-c", SHOW + READ]
    done = run(command, tmp_path, PREFECT_HOME=str(home), PREFECT_WORKER_QUERY_SECONDS="7")
    assert json.loads(done.stdout) == {
        "serializer": "json",
        "results": str(tmp_path / "runs" / "prefect-results"),
        "analytics": False,
        "startup_timeout_s": 120,
        "recorder": [200, 200],
        "flush_s": 1.0,
        "vacuum": ["events", "flow_runs"],
        "heartbeat_s": 60,
        "max_events": 50000,
        "query_s": 7.0,
        "default_query_s": "2",
        "loggers": ["stillhouse"],
    }, done.stderr
    assert home.is_dir()


def test_a_command_that_is_not_ours_starts_with_the_defaults(tmp_path: Path) -> None:
    show = ["python", "-c", "import os; print(os.environ['LITELLM_LOCAL_MODEL_COST_MAP'])"]
    command = [sys.executable, "-m", "tasks.server.environment"]
    done = run([*command, *show], tmp_path, PATH=os.defpath)
    assert done.stdout.strip() == "True", done.stderr
    unknown = run([*command, "no-such-command"], tmp_path)
    assert (unknown.returncode, unknown.stderr) == (
        1,
        "no-such-command: cannot be started: No such file or directory\n",
    )


def test_a_worker_started_in_the_background_of_a_script_can_be_interrupted(tmp_path: Path) -> None:
    # As a shell without job control starts what ends in `&`.
    background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "tasks.server.environment"]
    interrupted = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    done = run([*background, "python", "-c", interrupted], tmp_path)
    assert done.returncode == -signal.SIGINT, done.stderr
