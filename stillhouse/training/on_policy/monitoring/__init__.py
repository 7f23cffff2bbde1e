"""What people are shown of rollouts: figures, alarms, and pages of trajectories."""
