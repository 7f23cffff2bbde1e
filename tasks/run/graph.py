"""The flow run's graph: Prefect draws an edge to a task run that is given the very object which another returned."""

from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def made_of(sources: Iterable[Any], result: T) -> T:
    """Return `result`, which no task run returned, as if the one had that returned the first of such sources."""
    # `stillhouse plan` imports no Prefect.
    from prefect.utilities.engine import get_state_for_result, link_state_to_result

    found = next(filter(None, map(get_state_for_result, sources)), None)
    if found is not None:
        link_state_to_result(found[0], result, found[1])
    return result
