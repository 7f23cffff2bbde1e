"""Whether student and teacher of a config fit together: both answer some prompts, and the teacher scores answers."""
