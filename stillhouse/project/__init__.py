"""A project of the user's own to start from; `files` holds what is written."""

from stillhouse.project.create import Template, create_project

__all__ = ["Template", "create_project"]
