"""Whether a student and its teachers fit together: what was measured of a pair becomes findings and a verdict."""

from stillhouse.pair.finding import PairFinding, Verdict, verdict_of

__all__ = ["PairFinding", "Verdict", "verdict_of"]
