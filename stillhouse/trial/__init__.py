"""A trial of a config: a few rollouts with their rewards, as files and on a terminal."""
