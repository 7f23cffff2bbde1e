"""Whether an answer is right: right, wrong, or unverified."""
