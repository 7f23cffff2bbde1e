"""Settings of Prefect, MLflow and the hub client that a run from the shell starts with.

They are defaults: variables of the environment win. Images set the same ones. Set them before Prefect is imported,
which reads them once; other commands get them by `python -m tasks.server.environment COMMAND`.
"""

import os
import signal
import sys
from pathlib import Path

from tasks.server.login import send_login

DEFAULTS = {
    # Nothing leaves the machine unless a config names an endpoint.
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # A first start migrates the database, which takes longer than Prefect's own limit of 20 s.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
    # Stillhouse's own log lines appear on the flow run's page.
    "PREFECT_LOGGING_EXTRA_LOGGERS": "stillhouse",
    # Some lines belong to no flow run: those of `stillhouse test`, and of threads.
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    # SQLite answers a burst of single writes with 503; batches keep it calm.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    # Pages ask the server that they came from, whatever its name and port are in the browser.
    "PREFECT_SERVER_UI_API_URL": "/api",
    # Events go after 7 days and runs after 90, or the tables grow without bound.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    # In the server's memory, a restart would end every run of a deployment that limits how many run at once.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    # A killed flow is known by the heartbeats that it no longer sends: `deployments/automations.py`.
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "60",
    # What a flow has to tell a server that is away is kept in memory, up to here.
    "PREFECT_EVENTS_WORKER_MAX_QUEUE_SIZE": "50000",
    # At the default of 10 seconds a run starts 6 to 15 seconds after its time.
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    # Otherwise `mlflow server` keeps 8 processes for jobs that nobody has.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}

RESULTS = Path("runs", "prefect-results")
"""Prefect's folder, below the working directory, for results without a storage; stages use the store."""


def set_defaults() -> None:
    """Set every default that the environment does not set, make the folder PREFECT_HOME and send its login."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("PREFECT_RESULTS_LOCAL_STORAGE_PATH", str(RESULTS.absolute()))
    if home := os.environ.get("PREFECT_HOME"):
        # Prefect makes the folder but not its parents, and then waits in vain for a server without a database.
        Path(home).mkdir(parents=True, exist_ok=True)
    send_login()


def quiet_console() -> None:
    """Keep Prefect's log off the terminal, where each failed task would be three tracebacks; its pages get it."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")


def main() -> None:
    """Run the command in the arguments, such as `prefect worker start`, in this process, with the defaults set."""
    set_defaults()
    command = sys.argv[1:]
    if not command:
        sys.exit("usage: python -m tasks.server.environment COMMAND [ARGUMENT...]")
    # The commands of this virtual environment come first, whether it is activated or not.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    # Told to end, a worker of Prefect sends itself SIGINT, which scripts have what they start in the background ignore.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if command[0] == "prefect":
        from prefect.cli import app

        from tasks.server.outages import wait_out_outages

        wait_out_outages(lambda line: sys.stderr.write(f"{line}\n"))
        sys.argv = command
        return app()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
