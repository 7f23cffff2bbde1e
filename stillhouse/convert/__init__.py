"""What other programs wrote, as our prompts, trajectories and configs."""
