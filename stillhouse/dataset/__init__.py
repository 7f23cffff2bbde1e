"""Dataset: trajectories labelled, verified, selected, checked against the student, and written as Parquet."""

from stillhouse.dataset.labelling.functions import Label, LabelArgs, label

__all__ = ["Label", "LabelArgs", "label"]
