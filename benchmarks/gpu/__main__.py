"""Everything that only a GPU can show, within a budget of time; a second call goes on with what is missing.

    python -m benchmarks.gpu --check                      imports everything and says what is missing
    python -m benchmarks.gpu                              on a GPU; the page is docs/results/gpu.md
    python -m benchmarks.gpu --device cpu --tiny --out D  a rehearsal

It needs the packages of benchmarks/gpu/requirements.txt, and torch, transformers, peft, accelerate, numpy, scipy,
jinja2, pyarrow, pandas and pytest; neither a network, nor Prefect, nor MLflow, nor an installed project. Without a
peer's package the peer's rows are left out.

What several devices would show, by the config of docs/recipes/multi_gpu.md for them: two and eight processes against
one on the same step (tokens a second, and losses equal to 1e-4), and the idle shares of trainer and sampler with
`max_staleness` 0 and 1 where a vLLM on devices of its own samples.

Learnt on an H200 in two calls of 6 minutes
    Everything that ran was right: kernels, packing, sampler, adapters, every head, plain and compiled. 15 of the 18 GPU
    tests passed before their time was over, and none failed: give them 180 s and `PYTEST_ADDOPTS="-n 8"`.
    8B with an adapter at 4,096 tokens reached 57 %, as counting predicted (788 TFLOP/s, 4.3 TB/s). Its row takes 136 s,
    of which 26 s are training. The estimate of its memory was 11 % below the peak.
    An on-policy step of 256 x (128 + 512), predicted to take 12.5 s, was not through after 200 s. The sampler's cache
    grew slot by slot, which is mended but was not measured again.
    Predicted and not measured yet: 0.6B at 16,384 tokens 151 ms (52 %) compiled and 320 ms plain; 1.7B 343 ms (64 %).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.gpu.environment import ROOT, check_imports, commit, report
from benchmarks.gpu.page import page
from benchmarks.gpu.plan import PARTS, plan
from benchmarks.gpu.results import Results
from benchmarks.gpu.runner import Runner, Setting

_OUT: Final = ROOT / "docs" / "results" / "gpu"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--budget-s", type=float, default=540.0, metavar="SECONDS", help="of this call (540)")
    parser.add_argument(
        "--out", type=Path, default=_OUT, metavar="FOLDER", help="of the JSON files; the page is written next to it"
    )
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="of a pretrained model to train as well")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models: whether the plan works")
    parser.add_argument("--commit", default=None, help="of the checkout, where there is no git")
    parser.add_argument("--check", action="store_true", help="import everything, say what is missing, and end")
    chosen = parser.parse_args(arguments)
    if chosen.check:
        imports = check_imports()
        print(report(imports))
        return int(any(attempt.error is not None and attempt.needed_for is None for attempt in imports))
    results = Results(chosen.out)
    jobs = plan(with_model=chosen.model is not None, tiny=chosen.tiny)
    setting = Setting(chosen.device, chosen.tiny, chosen.commit or commit(), chosen.model)
    runner = Runner(results, setting, lambda line: print(line, flush=True))
    runner.run([job for job in jobs if job.part in chosen.parts], chosen.budget_s)
    path = chosen.out.with_name(f"{chosen.out.name}.md")
    path.write_text(page(plan(with_model=True), results.all()), encoding="utf-8")
    print(f"{path} is written from {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
