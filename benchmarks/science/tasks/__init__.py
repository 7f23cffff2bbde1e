"""What the small models learn: chains of arithmetic, facts, and stories that need a calculator."""
