"""Measures a pair before a training: how the student's teachers read what it samples on a few prompts."""
