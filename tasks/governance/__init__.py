"""Decisions about datasets and students: approval by a person, promotion to champion, the registry."""
