"""`python -m tasks.server.prefect_server`: a Prefect server that requires a login and refuses pages of other sites.

Prefect's own command requires a login only if one is set, accepts any `Host`, and lets pages of every origin call it: a
page that somebody on this machine opens could start runs.
"""

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from tasks.server.environment import set_defaults
from tasks.server.login import kept_login, login_file

_GRACE = timedelta(minutes=5)
"""As long as Prefect's leases."""


def serve(
    host: str, port: int, names: Collection[str] = (), *, listener: int | None = None, webserver_only: bool = False
) -> None:
    """Serve until stopped, with the login and the origins of the settings.

    Requests may name the server by `names`, IP addresses, `localhost` and, beyond loopback, the machine's name. An open
    socket `listener` that listens on the address already is taken over; `webserver_only` leaves schedules, automations
    and events to another process.
    """
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    from stillhouse.http.own_origin import OwnOriginOnly, names_of
    from tasks.server.database import begin_database

    begin_database()
    if listener is None:
        asyncio.run(_forgive_outage())
    server = get_current_settings().server
    app = create_app(final=True, webserver_only=webserver_only)
    uvicorn.run(
        OwnOriginOnly(app, names_of(host, names), server.api.cors_allowed_origins.split(",")),
        host=host,
        port=port,
        fd=listener,
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
        lifespan="on",
    )


async def _forgive_outage() -> None:
    """Give the runs that this server knows time to be heard again before leases and waits for heartbeats end."""
    from prefect.server.concurrency.lease_storage import get_concurrency_lease_storage
    from prefect.server.database import provide_database_interface
    from sqlalchemy import update
    from sqlalchemy.exc import DBAPIError

    db, leases, until = provide_database_interface(), get_concurrency_lease_storage(), datetime.now(UTC) + _GRACE
    waits = update(db.AutomationBucket).where(db.AutomationBucket.count == 0, db.AutomationBucket.end < until)
    # A new database of Postgres has no tables yet; one that does not answer is the app's to report.
    with suppress(DBAPIError):
        async with db.session_context(begin_transaction=True) as session:
            await session.execute(waits.values(end=until))
    for lease in await leases.read_expired_lease_ids(limit=10_000):
        await leases.renew_lease(lease, _GRACE)


def own_origins(host: str, port: int) -> str:
    """Return the origins of a server's own pages, in the form of Prefect's setting for allowed origins."""
    names = {"127.0.0.1", "localhost", f"[{host}]" if ":" in host else host}
    return ",".join(sorted(f"http://{name}:{port}" for name in names))


def main() -> None:
    """Serve on the address of the command line, with the login of the environment, else of PREFECT_HOME."""
    options = _options()
    set_defaults()
    login = os.environ.get("PREFECT_SERVER_API_AUTH_STRING") or os.environ.get("PREFECT_API_AUTH_STRING")
    login = login or kept_login()
    os.environ["PREFECT_SERVER_API_AUTH_STRING"] = login
    # Services of the server call its API too.
    os.environ.setdefault("PREFECT_API_AUTH_STRING", login)
    os.environ.setdefault("PREFECT_SERVER_CORS_ALLOWED_ORIGINS", own_origins(options.host, options.port))
    _say_how_to_log_in(
        f"http://{_name_for_others(options.host)}:{options.port}",
        is_kept=login_file().exists() and login == kept_login(),
    )
    serve(options.host, options.port, options.allowed_hosts, webserver_only=options.no_services)


def _name_for_others(host: str) -> str:
    with suppress(ValueError):
        if ip_address(host).is_unspecified:
            return socket.gethostname()
    return host


def _say_how_to_log_in(url: str, *, is_kept: bool) -> None:
    password = f"is the content of {login_file()}" if is_kept else "stands in the environment as NAME:PASSWORD"
    home = f"PREFECT_HOME={login_file().parent} " if is_kept else ""
    sys.stdout.write(
        f"Prefect's pages: {url}\nThe password that they ask for {password}\n"
        f"A run shows up there as: {home}PREFECT_API_URL={url}/api stillhouse distill CONFIG.yaml\n"
    )
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.server.prefect_server", description="Serve Prefect's API and pages."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=4200)
    parser.add_argument("--no-services", action="store_true", help="leave schedules and automations to another process")
    parser.add_argument(
        "--allowed-hosts", type=lambda text: text.split(","), default=(), help="names it is called by: a,b"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
