"""What turns gradients into weights: optimisers, schedules, averages."""
