"""A scored rollout as a person reads it on a terminal, and the summary of a trial."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

from stillhouse.chat.content import calls_of, reasoning_of, text_of, tool_error_of
from stillhouse.dataset.totals import totals_of
from stillhouse.evaluation.measure import mean
from stillhouse.interop.conversion_report import counted
from stillhouse.progress.text import dollars
from stillhouse.trial.rollout import ScoredRollout
from stillhouse.types import Message, StopReason

_MAX_LINES: Final = {"system": 3, "user": 40, "assistant": 40, "tool": 8}
"""Of messages, by role."""
_MAX_REASONING_LINES: Final = 6
_MAX_LINE: Final = 400
"""Characters of a line."""
_STYLES: Final = {"system": "dim", "user": "bold cyan", "assistant": "bold green", "tool": "bold magenta"}


def conversation(rollout: ScoredRollout, title: str, file: Path) -> RenderableType:
    """Return the messages of a rollout, long ones cut, and below them its scores and `file`, which holds all of it."""
    grid = Table.grid(Column(no_wrap=True, min_width=9), Column(overflow="fold"), padding=(0, 1))
    for message in rollout.trajectory.messages:
        role = message["role"]
        grid.add_row(Text(role, style=_STYLES[role]), Text("\n").join(_lines(message)))
    rule = Rule(title, align="left", style="dim")
    return Group(rule, grid, *_outcome(rollout), _facts(rollout, file), "")


def summary(rollouts: Sequence[ScoredRollout]) -> Iterator[Text]:
    """Yield lines of mean rewards, right answers, errors of tools and rewards, and the cost."""
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    if (average := mean(rewards)) is not None:
        names = dict.fromkeys(name for rollout in rollouts for name in rollout.scores.values)
        parts = {
            name: mean([value for one in rollouts if (value := one.scores.values.get(name)) is not None])
            for name in names
        }
        yield Text(f"mean reward {average:.3f}{_listed(parts)}", style="bold")
    verdicts = [rollout.verdict for rollout in rollouts if rollout.verdict is not None]
    facts = [counted(len(rollouts), "rollout"), f"{sum(one.has_failed for one in rollouts)} failed"]
    facts += [f"{sum(verdicts)} of {len(verdicts)} right"] if verdicts else []
    totals = [totals_of(rollout.trajectory) for rollout in rollouts]
    num_calls, num_errors = sum(one.num_tool_calls for one in totals), sum(one.num_tool_errors for one in totals)
    facts += [f"{num_errors} of {num_calls} tool calls failed"] if num_calls else []
    if num_reward_errors := sum(len(rollout.scores.errors) for rollout in rollouts):
        facts.append(f"{num_reward_errors} of {sum(len(one.scores.values) for one in rollouts)} rewards failed")
    costs = [turn.cost_usd for rollout in rollouts for turn in rollout.trajectory.turns]
    if costs and None not in costs:
        facts.append(dollars(sum(cost for cost in costs if cost is not None)))
    yield Text(", ".join(facts))


def _lines(message: Message) -> Iterator[Text]:
    if reasoning := reasoning_of(message):
        yield from _cut(reasoning, _MAX_REASONING_LINES, "dim italic")
    style = "red" if tool_error_of(message) is not None else "dim" if message["role"] == "system" else ""
    if text := text_of(message).strip() or message.get("refusal"):
        yield from _cut(text, _MAX_LINES[message["role"]], style)
    for call in calls_of(message):
        yield Text.assemble((_printable(call.name), "yellow"), f"({_printable(call.arguments)})")


def _cut(text: str, max_lines: int, style: str) -> Iterator[Text]:
    lines = text.strip().splitlines()
    for line in lines[:max_lines]:
        yield Text(_printable(line), style=style)
    if len(lines) > max_lines:
        yield Text(f"... {len(lines) - max_lines} more lines", style="dim")


def _printable(line: str) -> str:
    """Return a line cut to fit, without characters that steer a terminal, which a page or a model may have written."""
    cut = line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]} ..."
    return "".join(character if character.isprintable() else " " for character in cut)


def _outcome(rollout: ScoredRollout) -> Iterator[Text]:
    trajectory = rollout.trajectory
    if trajectory.error is not None:
        yield Text(f"\u2718 {trajectory.error['kind']}: {trajectory.error['message']}", style="red")
        return
    is_good = rollout.verdict is not False and not rollout.scores.errors
    verdict = {True: ", right", False: ", wrong", None: ""}
    score = "no reward" if rollout.reward is None else f"reward {rollout.reward:.3f}"
    yield Text.assemble(
        ("\u2714 ", "green") if is_good else ("\u2718 ", "red"),
        (f"{score}{_listed(rollout.scores.values)}{verdict[rollout.verdict]}", "bold"),
    )
    if rollout.comparison:
        yield Text(f"  {_printable(rollout.comparison)}", style="dim")
    for name, problem in rollout.scores.errors.items():
        yield Text(f"  {name}: {problem}", style="red")


def _facts(rollout: ScoredRollout, file: Path) -> Text:
    trajectory, totals = rollout.trajectory, totals_of(rollout.trajectory)
    facts = [counted(len(trajectory.turns), "turn")]
    if trajectory.stop_reason is not StopReason.ANSWERED:
        facts.append(f"stopped by {trajectory.stop_reason}")
    if totals.prompt_tokens is not None and totals.completion_tokens is not None:
        facts.append(f"{totals.prompt_tokens:,} + {totals.completion_tokens:,} tokens")
    if totals.latency_s is not None:
        facts.append(f"{totals.latency_s:.1f} s")
    if totals.cost_usd is not None:
        facts.append(dollars(totals.cost_usd))
    return Text(f"  {', '.join(facts)}, {file}", style="dim")


def _listed(values: dict[str, float | None]) -> str:
    listed = ", ".join(
        f"{name} {'failed' if value is None else format(value, '.3f')}" for name, value in values.items()
    )
    return f" ({listed})" if listed else ""
