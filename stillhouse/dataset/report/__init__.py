"""Summary, card and page of a dataset."""
