"""Evaluation: how right, how long, how valid, and how near the teacher a model's trajectories are."""
