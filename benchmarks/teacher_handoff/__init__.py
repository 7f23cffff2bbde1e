"""A teacher's distributions handed to the training process from another one."""
