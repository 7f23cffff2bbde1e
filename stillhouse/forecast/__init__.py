"""What a config will ask hosted models for, and its price, before anything is sent."""
