"""Dataset: trajectories labelled, verified, selected, checked against the student, and written as Parquet."""
