"""Sampling trajectories of the student: the lockstep loop over turns and tools, and the engines that decode for it."""
