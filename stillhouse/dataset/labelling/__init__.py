"""Labels of trajectories. A labeller maps a batch of inputs to columns; it measures and decides nothing."""
