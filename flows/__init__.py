"""Flows, which a user triggers: one flow a file, composition only."""
