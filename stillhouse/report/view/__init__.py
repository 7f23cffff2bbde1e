"""A page to read trajectories on: one HTML file, searched and filtered in the browser."""
