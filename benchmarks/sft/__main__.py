"""The trainer against TRL's `SFTTrainer` on conversations of very different lengths, on the CPU.

    python -m benchmarks.sft
    python -m benchmarks.sft --sweep     every setting of TRL, once

Claims
    losses    those of TRL to 1e-3 over 50 steps from the same start, in the same order, with the same hyperparameters.
    speed     at least 2.5 times TRL's tokens a second at the shapes small and middle, each at its best settings.

Measured
    Tokens a second, ours and TRL's, their ratio, and our peak memory over TRL's, on two quiet cores with AVX-512:
        small   float32   5,083   1,293   3.93   0.61        bfloat16   6,128   1,732   3.54   0.50
        middle  float32   1,372     453   3.03   1.02        bfloat16   1,905     712   2.67   0.76
    The large shape came to 499 against 287 (1.74) in bfloat16 without compiled blocks. Losses of 50 steps differ by
    1.4e-6.

Learnt
    Matrix products bound the gain: in bfloat16 they take 59 % of our time at the middle shape, and TRL reaches 29 % of
    the processor's speed at the large one, so that nobody could be 3.5 times as fast there. What is left beside them is
    memory: casts of weights by autocast, the norms and the rotary embedding, and the embedding's dense gradient.
    TRL is fastest with one row a pass, since its loss makes all logits of a pass at once; compiled it gains 10 to 30 %
    in bfloat16 and little in float32, ours 6 to 19 %. Huge pages (`glibc.malloc.hugetlb=1`) would give 10 % more.
"""

from typing import Final

from benchmarks.frame.against_trl import Command, Workload
from benchmarks.sft.bench import SftBench

main: Final = Command(
    description=__doc__,
    make=lambda folder, trl, options: SftBench(folder, trl, options.threads),
    losses=Workload("narrow", "float32", 50),
    quick_losses=Workload("tiny", "float32", 5),
    speeds=(
        Workload("small", "float32", 5),
        Workload("small", "bfloat16", 5),
        Workload("middle", "float32", 3),
        Workload("middle", "bfloat16", 4),
        Workload("large", "bfloat16", 2),
    ),
    quick_speeds=Workload("tiny", "float32", 3),
)

if __name__ == "__main__":
    main()
