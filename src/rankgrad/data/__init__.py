"""Data: from files to lists of items, and what is done to their features."""
