"""That schedules make runs, with the packages that are installed here."""

import subprocess
import sys
from pathlib import Path

# In a process of its own: Prefect's server reads which database it has when it is imported.
CODE = """
import asyncio, datetime
from prefect.server import models, schemas
from prefect.server.database import provide_database_interface

async def main():
    db = provide_database_interface()
    await db.create_db()
    async with db.session_context(begin_transaction=True) as session:
        flow = await models.flows.create_flow(session, schemas.core.Flow(name="distill"))
        schedule = schemas.schedules.CronSchedule(cron="0 2 * * *", timezone="Europe/Berlin")
        deployment = await models.deployments.create_deployment(
            session,
            schemas.core.Deployment(
                name="demo",
                flow_id=flow.id,
                schedules=[schemas.core.DeploymentSchedule(schedule=schedule, active=True)],
            ),
        )
        await session.flush()
        runs = await models.deployments.schedule_runs(session, deployment.id, max_runs=3)
        print(len(runs))

asyncio.run(main())
"""


def test_a_schedule_makes_runs(tmp_path: Path) -> None:
    """Prefect 3.8 cannot insert them with SQLAlchemy 2.1, and says so in the server's log alone."""
    environment = {"PREFECT_HOME": str(tmp_path), "PATH": str(Path(sys.executable).parent)}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "3", done.stderr[-3000:]
