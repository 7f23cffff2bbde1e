"""Progress in words, equal on a terminal, in a log and on the flow run's page."""

from collections.abc import Iterator, Mapping

from stillhouse.progress.run_state import Bar, RunState
from stillhouse.progress.state import Fact, RolloutProgress


def lines_of(state: RolloutProgress) -> list[tuple[str, str]]:
    """Return labels and texts of speed, limit and its reason, trouble, cost; all but the reason fit 80 columns."""
    return [
        ("speed", ", ".join(_speed(state))),
        ("limit", ", ".join(_limit(state))),
        ("reason", state.limit_reason or "nothing refused yet"),
        ("trouble", ", ".join(_trouble(state)) or "none"),
        ("cost", _cost(state)),
    ]


def details_of(bar: Bar) -> list[tuple[str, str]]:
    """Return labels and texts below a stage's bar; those of facts are one line without a label."""
    if bar.rollouts is not None:
        return lines_of(bar.rollouts) if bar.rollouts.limit or bar.rollouts.done else []
    return [("", facts_text(bar.facts))] if bar.facts else []


def facts_text(facts: Mapping[str, Fact]) -> str:
    """Return `loss 0.812, lr 1.0e-04, 12.3k tokens/s, 6 min left`: the facts of `Progress.update`."""
    return ", ".join(_fact(name, value) for name, value in facts.items())


def run_text(state: RunState) -> str:
    """Return `stage 5 of 12: sft, saving, 2 min left, then 3 more stages`; those are of unknown length."""
    if not state.present:
        return state.doing
    parts = [f"stage {state.number} of {len(state.stages)}: {state.present.replace('_', '-')}"]
    parts += [state.doing] * bool(state.doing)
    more = f"{state.num_unknown} more stage{'' if state.num_unknown == 1 else 's'}"
    if state.eta_s is not None and state.eta_s >= 1.0:
        parts.append(f"{duration(state.eta_s)} left" + (f", then {more}" if state.num_unknown else ""))
    return ", ".join(parts)


def counted(state: RolloutProgress | Bar) -> str:
    """Return `312/2,000`, or `312/?` if the total is unknown."""
    return f"{state.done:,}/{'?' if state.total is None else format(state.total, ',')}"


def duration(seconds: float) -> str:
    """Return `45 s`, `6 min`, `2 h 07 min`, `3 d 04 h`."""
    if round(seconds) < 60:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def dollars(usd: float) -> str:
    """Return `$12.30`; below a dollar four places, since rollouts are cheap one by one."""
    return f"${usd:,.2f}" if usd >= 1.0 or usd == 0.0 else f"${usd:.4f}"


def short(number: float) -> str:
    """Return `4.1`, `812`, `12.3k`, `1.2M`."""
    if number >= 1e6:
        return f"{number / 1e6:.1f}M"
    if number >= 1e4:
        return f"{number / 1e3:.1f}k"
    return f"{number:,.0f}" if number >= 100 or float(number).is_integer() else f"{number:.1f}"


def _fact(name: str, value: Fact) -> str:
    if name == "doing":
        return str(value)
    if isinstance(value, str):
        return f"{name.replace('_', ' ')} {value}"
    if name == "eta_s":
        return f"{duration(value)} left"
    if name == "learning_rate":
        return f"lr {value:.1e}"
    if name == "mean_completion_tokens":
        return f"length {value:.0f}"
    if name.endswith("_per_s"):
        return f"{short(value)} {name.removesuffix('_per_s').replace('_', ' ')}/s"
    return f"{name.replace('_', ' ')} {value if isinstance(value, int) else format(value, '.3g')}"


def _speed(state: RolloutProgress) -> Iterator[str]:
    yield f"{short(state.rows_per_s)} rows/s"
    yield f"{short(state.tokens_per_s)} tokens/s"
    if state.eta_s is not None and state.done != state.total:
        yield f"{duration(state.eta_s)} left"
    if state.num_replayed:
        yield f"{state.num_replayed:,} were at hand"


def _limit(state: RolloutProgress) -> Iterator[str]:
    if not state.limit:
        yield "each worker has its own" if state.done > state.num_replayed else "nobody asked yet"
        return
    yield f"{state.in_flight} of {state.limit} in flight"
    if state.requests_per_minute is not None:
        yield f"{short(state.requests_per_minute)} requests/min"
    if state.tokens_per_minute is not None:
        yield f"{short(state.tokens_per_minute)} tokens/min"


def _trouble(state: RolloutProgress) -> Iterator[str]:
    if state.failed:
        yield f"{state.failed:,} failed"
    if state.num_rate_limited and not state.is_local:
        yield f"{state.num_rate_limited:,} refused with 429"
    # Of a small model's answers many are empty, which counts as transient: they are asked for again.
    pacing = {"transient"} if state.is_local else set()
    if retries := [
        f"{count:,} {kind}" for kind, count in sorted(state.retries.items()) if count and kind not in pacing
    ]:
        yield f"retried {', '.join(retries)}"
    if state.num_copies:
        yield f"{state.num_copies:,} overdue and sent twice"


def _cost(state: RolloutProgress) -> str:
    if state.is_local and not state.usd:
        return "local"
    if state.usd is None:
        return "price unknown"
    if not state.usd and state.num_replayed and state.num_replayed == state.done:
        return "all was at hand"
    if state.usd_projected is None or state.done == state.total:
        return f"{dollars(state.usd)} spent"
    low, mean, high = map(dollars, state.usd_projected)
    return f"{dollars(state.usd)} spent, {mean} projected ({low} to {high})"
