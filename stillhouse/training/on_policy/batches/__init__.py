"""Batches of rollouts: how they are made, in what order, and how they outlive the process that made them."""
