"""Figures, alarms and shown trajectories of rollouts."""
