"""End of the trajectory, its turns, and its failed tool calls."""

from typing import Final

from stillhouse.labels.declare import Filter, Label, Limit, Reason, above, between, number, outside
from stillhouse.types import StopReason

_MEANINGS: Final = {
    StopReason.MAX_TURNS: "the last allowed turn still called tools, and so did the closing answer if there was one",
    StopReason.LENGTH: "a completion was cut at its token limit",
    StopReason.BUDGET: "the rollout met its own cap on tokens or money",
    StopReason.INVALID: "the answer misses rollouts.response_schema",
    StopReason.CONTEXT_OVERFLOW: "the conversation outgrew the teacher's context",
    StopReason.CONTENT_FILTER: "the provider withheld a completion",
    StopReason.MALFORMED: "the model wrote a call that its endpoint could not read",
    StopReason.UNFINISHED: "a completion may be cut, by a finish reason that rollouts.finish_reasons does not name",
    StopReason.TIMEOUT: "the rollout ran out of its wall time",
    StopReason.ERROR: "a request failed for good",
}


def _ended(stop: StopReason) -> Filter:
    reason = Reason(stop.value, _MEANINGS[stop])
    return Filter(reason, "finished", ("stop_reason",), lambda rows, _: rows["stop_reason"] == stop.value, place=10)


FINISHED: Final = Label(filters=(
    *(_ended(stop) for stop in StopReason if stop is not StopReason.ANSWERED),
    above("num_tool_errors", Reason("tool_errors", "too many tool calls failed"), "few enough tool errors", Limit(
        "max_tool_errors", number(int, ge=0),
        "Most failed tool calls. 0 leaves clean rows alone; 1 or 2 let the student see how the teacher recovers."), 50),
    *outside("turns", Reason("too_few_turns", "too few turns"), Reason("too_many_turns", "too many turns"),
        "with turns within limits", Limit("turns", between(int, ge=1),
        "Fewest and most turns, such as `[2, 8]`; null sets no limit. From 2 on, answers that used no tool are "
        "dropped. The longest are often loops: see the distribution in the dataset's report."), 60),
))  # fmt: skip
