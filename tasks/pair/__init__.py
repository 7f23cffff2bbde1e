"""Whether a pair fits together, measured on a few held-out prompts: for `stillhouse doctor`, and before a training.

Student and teachers answer as they do in an evaluation, whose completions in the journal are the same (`answers`), and
the training process has the teachers score what the student samples (`examine`).
"""
