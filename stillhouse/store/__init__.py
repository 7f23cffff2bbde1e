"""Artifacts on disk: written whole or not at all, named by what they depend on, checked when read."""

from stillhouse.store.artifacts import ArtifactStore
from stillhouse.store.fingerprint import canonical_json, digest, file_sha256, prompt_id

__all__ = ["ArtifactStore", "canonical_json", "digest", "file_sha256", "prompt_id"]
