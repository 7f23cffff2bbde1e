"""Examines if student and teacher of a config fit: both answer some prompts, and the teacher scores answers."""
