"""Trajectories that hold text of evaluation sets."""

from stillhouse.dataset.contamination.labels import ContaminationLabels
from stillhouse.dataset.contamination.sets import sets_fingerprint

__all__ = ["ContaminationLabels", "sets_fingerprint"]
