"""A language model that grades trajectories against a rubric."""
