"""The on-policy method against TRL's `DistillationTrainer` on the CPU: the student samples, the teacher of twice its
width gives its whole distribution, the loss is the exact reverse KL.

    python -m benchmarks.on_policy
    python -m benchmarks.on_policy --sweep     every setting of TRL, once
    python -m benchmarks.on_policy --grpo      rewards alone against TRL's `GRPOTrainer`: 8 completions of a prompt

Claims
    losses    those of TRL to 1e-3 over 20 updates from the same start on the same trajectories, which TRL samples.
    speed     at most a third of TRL's time for the same number of sampled tokens at the shapes small and middle, TRL at
              its best settings, where completions are log-normally long; no claim where they are equally long.

Measured
    Every prompt says how long its completion is (`workload.py`), log-normally; `equal` workloads have completions of
    one length, where nobody has to pad. Split of a step: sampling; the teacher's layers; training, the teacher's output
    layer included; handing over weights to what samples. Beside it the floor of what this machine can do (`floor.py`).

Learnt
    On one busy core, 16 completions a step, float32, CPU time: 4.5 (4.4..4.6, 2 rounds) times TRL's sampled tokens a
    second at the shape small, with 1.9 GiB; TRL held 9.8 with all rows at once and 3.8 with a quarter of them. At
    middle some 4 times, in bfloat16 5 (one round). On a CPU TRL's output layer takes padding, too: with equally long
    completions, which have none, the ratio is 2.1 (one round).

    On two quiet cores, small, 32 completions a step, one round. In float32: 5.1 s against 25.7 (5.0; of CPU time 4.7),
    2.6 GiB against 6.8; sampling 2.9 s against 10.6 (floor 0.4), scoring 0.5 against 2.5 (0.35), training 1.7 against
    12.6 (1.0). In bfloat16: 3.3 s against 24.7 (7.3), 1.9 GiB against 6.9. Losses of 20 updates differ by 8.9e-8.
"""

from typing import Final

from benchmarks.frame.against_trl import Command, Workload
from benchmarks.on_policy.bench import OnPolicyBench

_GROUP_SIZE: Final = 8

main: Final = Command(
    description=__doc__,
    make=lambda folder, trl, options: OnPolicyBench(folder, trl, options.threads, _GROUP_SIZE if options.grpo else 1),
    losses=Workload("narrow", "float32", 20, 16),
    quick_losses=Workload("tiny", "float32", 3, 8),
    speeds=(
        Workload("small", "float32", 3, 32),
        Workload("small", "bfloat16", 3, 32),
        Workload("small", "float32", 3, 32, equal=True),
        Workload("middle", "float32", 2, 16),
        Workload("middle", "bfloat16", 2, 16),
    ),
    quick_speeds=Workload("tiny", "float32", 3, 8),
    flags={"--grpo": "rewards alone, against TRL's GRPOTrainer"},
)

if __name__ == "__main__":
    main()
