"""A run's stages as Prefect assets: events of what was made and what was used, of what, in the form of Prefect's own.

`prefect.assets.materialize` is not used: it emits nothing for a cached stage, one event for each shard, and none in
the flow that hands a stage to another machine.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from prefect.assets import Asset, AssetProperties
from prefect.context import AssetContext
from prefect.events import emit_event
from prefect.states import Completed
from prefect.types.names import RESTRICTED_ASSET_CHARACTERS

from stillhouse.store import digest
from stillhouse.types import Artifact, Model
from tasks.cache.results import artifacts_in
from tasks.rollouts import Rollouts
from tasks.run.context import Run, StageOutcome

_FORBIDDEN: Final = str.maketrans(dict.fromkeys((*RESTRICTED_ASSET_CHARACTERS, "/"), "-"))
_MAX_NAME_CHARS: Final = 200
_MAX_ARTIFACTS: Final = 20
"""Artifacts named in an event; rollouts have one for each shard."""


def outputs_of(result: Any) -> list[Artifact]:
    """Return the artifacts that a stage made."""
    # The metadata in rollouts is an output of the prompts.
    return list(result.shards if isinstance(result, Rollouts) else artifacts_in(result))


def show_asset(outcome: StageOutcome, run: Run) -> None:
    """Emit `prefect.asset.materialization.succeeded` for a stage, or `prefect.asset.referenced` where it was cached."""
    asset = asset_of(outcome, run)
    if outcome.cached:
        emit_event("prefect.asset.referenced", resource=AssetContext.asset_as_resource(asset))
        return
    used = _places(outcome.inputs)
    sources = [
        other for other in run.stages if other is not outcome and used & {made.uri for made in outputs_of(other.result)}
    ]
    outputs = outputs_of(outcome.result)
    prints = [made.fingerprint for made in outputs]
    facts = {name: value for name, value in outcome.result.facts.items() if isinstance(value, int | float)}
    metadata = {
        **facts,
        "fingerprint": prints[0] if len(prints) == 1 else digest(prints),
        "artifacts": [made.model_dump(exclude={"facts"}) for made in islice(outputs, _MAX_ARTIFACTS)],
    }
    AssetContext(
        downstream_assets={asset},
        upstream_assets={asset_of(source, run) for source in sources},
        materialized_by="stillhouse",
        materialization_metadata={asset.key: metadata},
    ).emit_events(Completed())


def asset_of(outcome: StageOutcome, run: Run) -> Asset:
    """Return the asset of a stage, whose key is the same in all runs of an experiment."""
    experiment = run.config.tracking.experiment[:_MAX_NAME_CHARS].translate(_FORBIDDEN)
    name = outcome.name[:_MAX_NAME_CHARS].translate(_FORBIDDEN)
    properties = AssetProperties(name=outcome.name, url=run.record.pages.run)
    return Asset(key=f"stillhouse://{experiment}/{name}", properties=properties)


def _places(inputs: Iterable[Any]) -> set[str]:
    """Return where the artifacts and the models among a stage's inputs lie."""
    given = list(inputs)
    return {made.uri for made in artifacts_in(given)} | {model.ref for model in given if isinstance(model, Model)}
