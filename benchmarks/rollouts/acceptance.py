"""What the engine is held to, each part alone:

    python -m benchmarks.rollouts.acceptance --parts cpu ideal rate hosted memory flow limits steps distributions

Claims
    cpu       client CPU at most 0.25 of the `openai` package's in a loop, with journal and rate control on.
    ideal     at least 0.9 of the ideal with 256 in flight and answers after 200 ms.
    rate      1,000 in flight, and 2,500 short requests for a second of CPU.
    hosted    600 short requests for a second of CPU through the package `openai`.
    memory    at most 100 MB more at 100,000 prompts than at 10,000.
    flow      `stillhouse generate`, with Prefect, journal and Parquet, takes at most 5 % longer than the engine alone.
    limits    at least 0.97 of a hidden limit once converged and at most 1 % refused: RPM, TPM, concurrency, each with
              and without headers.
    steps     90 % of a raised limit within 30 s, and calm when it falls.
    distributions  the most probable tokens cost as little as `distributions` says, in under a minute.

Measured
    Client and provider in processes of their own. `cpu` is the ratio of CPU for a row, imports left out, sides in turn.
    `ideal` divides by prompts times latency over slots: for a client that starts by itself (`cold`, whose way up counts
    more the fewer prompts there are) and for one that starts at 256, as the scripts do (`warm`). Answers
    after exactly 200 ms come in bursts, which a client works off one by one; for latencies that vary as in S1 the
    optimum is an event simulation. `rate` gives rows per second of CPU, of all threads, and rows per second. `memory`
    draws prompts lazily and drops trajectories. `hosted` asks through either client in turn, 256 in flight. `flow`
    takes the time from the first request to the end of a command with many prompts less that of one with few, so that
    neither imports nor the start and end of Prefect count; with the 20 requests in flight that a run starts with, and
    with 256. `limits` and `steps` give the engine more prompts
    than it can use, stop it, and read the ledger by seconds; the first 30 s of each limit are for finding it.

Learnt
    On two cores, a median of three rounds, one for limits, steps and memory.
        cpu      0.23 of the script's where others used the machine, 0.19 where they did not
        ideal    warm 0.86 to 0.89, with varied latencies 0.997; cold 0.73, and 0.93 with 20,000 prompts
        rate     2,900 to 3,200 rows for a second of CPU, 3,100 a second, 1,000 in flight
        hosted   1.33 ms of CPU a row through the package, 750 rows for a second of CPU, 0.79 ms directly; all of it
                 under a load of 10 on two cores, where `rate` falls to less than half
        memory   78 MB at 10,000 prompts, 80 MB at 100,000
        flow     1.00 with 20 in flight, 1.14 with 256
        limits   0.993 to 1.001 in all six cases, at most 0.91 % refused in all, none with headers
        steps    0.991 to 1.002; 90 % of a doubled limit after 6 to 13 s; at most 0.86 % refused once converged, and 1.1
                 to 1.3 % in the phase in which a limit is halved, which has to be discovered
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.frame.rounds import Spread, argument_parser, publish, ratio, spread
from benchmarks.rollouts.distributions import distributions
from benchmarks.rollouts.hidden_limits import limits, steps
from benchmarks.rollouts.measure import HERE, LATENCY_S, Effort, fresh, run, run_bare, run_flow, span_s
from benchmarks.rollouts.optimum import optimum_s
from benchmarks.rollouts.process import running
from benchmarks.rollouts.scenarios import SCENARIOS, Scenario
from benchmarks.rollouts.sides.job import Job
from benchmarks.rollouts.trial import run_trial
from tests.provider.answers import Service

_SLOTS: Final = 256
_FLOW_SLOTS: Final = (20, 256)

Part = Callable[[Effort, Path], tuple[list[str], dict[str, Any]]]


def cpu(effort: Effort, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """CPU of the engine over that of the script."""
    scenario = Scenario("", Service(latency_s=LATENCY_S), effort.num_prompts, concurrency=_SLOTS)
    taken: dict[str, list[float]] = {"engine": [], "script": [], "floor": []}
    for _ in range(effort.rounds):
        for side, seconds in taken.items():
            with fresh(folder) as aside:
                seconds.append(run_trial(scenario, 1.0, side, HERE, aside).cpu_s_per_1000)
    to_script, of_floor = ratio(taken["engine"], taken["script"]), ratio(taken["floor"], taken["script"])
    lines = [
        f"cpu: {to_script} of the script's (at most 0.25; the bare loop's {of_floor}); "
        f"{spread(taken['engine'])} s for 1,000 rows"
    ]
    return lines, {"to_script": asdict(to_script), "floor_to_script": asdict(of_floor), "s_per_1000": taken}


def ideal(effort: Effort, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Share of the ideal."""
    lines, figures = [], {}
    for name, start, factor in (("cold", None, 1), ("warm", _SLOTS, 1), ("cold, long", None, effort.long_factor)):
        num_prompts = effort.num_prompts * factor
        shares = []
        for _ in range(effort.rounds):
            with fresh(folder) as aside, running(Service(latency_s=LATENCY_S)) as provider:
                job = Job(provider.url, str(aside), num_prompts, _SLOTS, start=start)
                run("engine", job)
                shares.append(num_prompts * LATENCY_S / _SLOTS / span_s(provider.ledger()))
        figures[name] = asdict(spread(shares))
        lines.append(f"ideal, {name}: {spread(shares)} with {num_prompts:,} prompts (at least 0.9)")
    varied = replace(SCENARIOS["S1"], num_prompts=effort.num_prompts)
    best_s, shares = optimum_s(varied), []
    for _ in range(effort.rounds):
        with fresh(folder) as aside, running(varied.service) as provider:
            run("engine", Job(provider.url, str(aside), effort.num_prompts, _SLOTS, start=_SLOTS))
            shares.append(best_s / span_s(provider.ledger()))
    figures["warm, varied"] = asdict(spread(shares))
    lines.append(
        f"ideal, warm, latencies that vary: {spread(shares)} with {effort.num_prompts:,} prompts (at least 0.9)"
    )
    return lines, figures


def rate(effort: Effort, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Rows per second and per second of CPU with 1,000 in flight."""
    num_prompts = effort.num_prompts * effort.long_factor
    per_cpu_s, per_s, in_flight = [], [], []
    for _ in range(effort.rounds):
        with fresh(folder) as aside, running(Service(latency_s=LATENCY_S)) as provider:
            took = run("engine", Job(provider.url, str(aside), num_prompts, 1000))
            ledger = provider.ledger()
        per_cpu_s.append(num_prompts / took.cpu_s)
        per_s.append(num_prompts / span_s(ledger))
        in_flight.append(float(ledger.peak_in_flight))
    spreads: dict[str, Spread] = {
        "rows_per_cpu_s": spread(per_cpu_s),
        "rows_per_s": spread(per_s),
        "peak_in_flight": spread(in_flight),
    }
    lines = [
        f"rate: {spreads['rows_per_cpu_s']} rows for a second of CPU (at least 2,500), "
        f"{spreads['rows_per_s']} a second, {spreads['peak_in_flight']} in flight"
    ]
    return lines, {name: asdict(figure) for name, figure in spreads.items()}


def hosted(effort: Effort, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """CPU of a row and rows per second, asked directly and through the package, in turn."""
    clients: tuple[Literal["direct", "openai"], ...] = ("direct", "openai")
    cpu_ms: dict[str, list[float]] = {client: [] for client in clients}
    per_s: dict[str, list[float]] = {client: [] for client in clients}
    for _ in range(effort.rounds):
        for client in clients:
            with fresh(folder) as aside, running(Service(latency_s=LATENCY_S)) as provider:
                took = run("engine", Job(provider.url, str(aside), effort.num_prompts, _SLOTS, _SLOTS, client=client))
                per_s[client].append(effort.num_prompts / span_s(provider.ledger()))
            cpu_ms[client].append(took.cpu_s / effort.num_prompts * 1e3)
    lines = [
        f"hosted, {client}: {spread(cpu_ms[client])} ms of CPU a row, "
        f"{spread([1e3 / ms for ms in cpu_ms[client]])} rows for a second of CPU, {spread(per_s[client])} a second"
        for client in cpu_ms
    ]
    return lines, {"cpu_ms": cpu_ms, "rows_per_s": per_s}


def memory(effort: Effort, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Growth of the peak RSS from few prompts to many."""
    peaks = []
    for num_prompts in effort.memory_prompts:
        with fresh(folder) as aside, running(Service(latency_s=0.02)) as provider:
            peaks.append(run("engine", Job(provider.url, str(aside), num_prompts, _SLOTS, keep_rows=False)).peak_rss_mb)
    few, many = effort.memory_prompts
    lines = [f"memory: {peaks[0]:.0f} MB at {few:,} prompts, {peaks[1]:.0f} MB at {many:,} (at most 100 MB more)"]
    return lines, {"num_prompts": effort.memory_prompts, "peak_rss_mb": peaks}


def flow(effort: Effort, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Time of the flow over that of the engine alone."""
    lines, figures = [], {}
    few = max(20, effort.num_prompts // 100)
    for slots in _FLOW_SLOTS:
        walls: dict[str, list[float]] = {"flow": [], "flow, few": [], "engine": [], "engine, few": []}
        for _ in range(effort.rounds):
            for name, wall in walls.items():
                num_prompts = few if name.endswith("few") else effort.num_prompts
                command = run_flow if name.startswith("flow") else run_bare
                with fresh(folder) as aside:
                    wall.append(command(num_prompts, slots, aside))
        beyond = {
            side: [many - start for many, start in zip(walls[side], walls[f"{side}, few"], strict=True)]
            for side in ("flow", "engine")
        }
        flow_ratio = ratio(beyond["flow"], beyond["engine"])
        lines.append(
            f"flow, {slots} in flight: {flow_ratio} of the engine's time for {effort.num_prompts - few:,} prompts more "
            f"(at most 1.05), {spread(beyond['flow'])} s; with {few} prompts {spread(walls['flow, few'])} s"
        )
        figures[str(slots)] = {"to_engine": asdict(flow_ratio), "wall_s": walls}
    return lines, figures


PARTS: Final[dict[str, Part]] = {
    "cpu": cpu,
    "ideal": ideal,
    "rate": rate,
    "hosted": hosted,
    "memory": memory,
    "flow": flow,
    "limits": limits,
    "steps": steps,
    "distributions": distributions,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser, usual = argument_parser(__doc__), Effort()
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--rounds", type=int, default=usual.rounds)
    parser.add_argument("--prompts", type=int, default=usual.num_prompts)
    parser.add_argument("--duration-s", type=float, default=usual.duration_s, help="of each hidden limit")
    parser.add_argument("--memory-prompts", type=int, nargs=2, default=usual.memory_prompts, metavar=("FEW", "MANY"))
    parser.add_argument("--work", type=Path, default=Path("runs/bench/rollouts/acceptance"))
    chosen = parser.parse_args(arguments)
    effort = replace(
        usual,
        rounds=chosen.rounds,
        num_prompts=chosen.prompts,
        duration_s=chosen.duration_s,
        settle_s=min(usual.settle_s, chosen.duration_s / 3),
        memory_prompts=tuple(chosen.memory_prompts),
    )
    lines, figures = [], {}
    for name in chosen.parts:
        said, figures[name] = PARTS[name](effort, chosen.work.absolute())
        print("\n".join(said), flush=True)
        lines += said
    publish([], figures, chosen.json)


if __name__ == "__main__":
    main()
