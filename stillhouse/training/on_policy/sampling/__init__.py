"""Sampling trajectories: the loop over turns and tools, and the engines that decode for it."""
