"""Section of the human gate."""

from typing import Literal

from pydantic import Field

from stillhouse.config.section import Section


class ApprovalConfig(Section):
    """A person's yes between the dataset and training."""

    enabled: bool = False
    """Ask before anything is trained on the run's dataset: on the flow run's page in Prefect, once for each dataset.
    A run of a deployment gives its process back while it waits. Flows without a dataset of their own do not ask."""
    timeout_minutes: float = Field(default=1440.0, ge=0.5, le=43200.0)
    """Minutes to wait for an answer, at most 30 days."""
    at_timeout: Literal["approve", "reject"] = "reject"
    """The answer when nobody has given one in time, and where nobody can: in a run without a Prefect server."""
