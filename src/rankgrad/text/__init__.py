"""Text: collections, topics, the first stage, and rankers that read text."""
