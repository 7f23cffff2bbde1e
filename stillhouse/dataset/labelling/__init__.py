"""What is measured of each trajectory. A labeller maps a batch of subjects to columns; it decides nothing."""
