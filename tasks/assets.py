"""A run's stages as Prefect assets: events of what was made and what was used, of what, in the form of Prefect's own.

`prefect.assets.materialize` is not used: it emits nothing for a cached stage, one event for each shard, and none in
the flow that hands a stage to another machine.
"""

from typing import Any, Final

from prefect.assets import Asset, AssetProperties
from prefect.context import AssetContext
from prefect.events import emit_event
from prefect.states import Completed
from prefect.types.names import RESTRICTED_ASSET_CHARACTERS

from stillhouse.store import digest
from stillhouse.types import Artifact, JsonObject, Model
from tasks.cache.results import artifacts_in
from tasks.rollouts import Rollouts
from tasks.run.context import Run, StageOutcome

_FORBIDDEN: Final = str.maketrans(dict.fromkeys((*RESTRICTED_ASSET_CHARACTERS, "/"), "-"))
_MAX_NAME_CHARS: Final = 200


def outputs_of(result: Any) -> list[Artifact]:
    """Return the artifacts that a stage made."""
    # The metadata in rollouts is an output of the prompts.
    return list(result.shards if isinstance(result, Rollouts) else artifacts_in(result))


def show_asset(outcome: StageOutcome, run: Run) -> None:
    """Emit `prefect.asset.materialization.succeeded` for a stage, or `prefect.asset.referenced` where it was cached."""
    asset, made = asset_of(outcome, run), outputs_of(outcome.result)
    if outcome.cached:
        emit_event("prefect.asset.referenced", resource=AssetContext.asset_as_resource(asset))
        return
    used = {one.uri for one in artifacts_in(outcome.inputs)}
    used |= {one.ref for one in outcome.inputs if isinstance(one, Model)}
    others = [other for other in run.stages if other is not outcome]
    sources = {asset_of(other, run) for other in others if used & {one.uri for one in outputs_of(other.result)}}
    facts: JsonObject = {name: value for name, value in outcome.result.facts.items() if isinstance(value, int | float)}
    prints = [one.fingerprint for one in made]
    facts |= {"uri": made[0].uri if made else None, "fingerprint": prints[0] if len(prints) == 1 else digest(prints)}
    context = AssetContext(downstream_assets={asset}, upstream_assets=sources, materialized_by="stillhouse")
    context.add_asset_metadata(asset.key, {"num_rows": sum(one.num_rows for one in made), **facts})
    context.emit_events(Completed())


def asset_of(outcome: StageOutcome, run: Run) -> Asset:
    """Return the asset of a stage, whose key is the same in all runs of an experiment."""
    names = (name[:_MAX_NAME_CHARS].translate(_FORBIDDEN) for name in (run.config.tracking.experiment, outcome.name))
    properties = AssetProperties(name=outcome.name, url=run.record.pages.run)
    return Asset(key=f"stillhouse://{'/'.join(names)}", properties=properties)
