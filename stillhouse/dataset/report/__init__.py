"""What a dataset is and how it came about: a summary, a card, a page."""
