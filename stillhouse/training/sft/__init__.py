"""Supervised fine-tuning: the student learns to say what the teacher said."""
