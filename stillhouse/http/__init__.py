"""What every HTTP client here does with an answer before anything else sees it: bounds it, and takes keys out of it."""
