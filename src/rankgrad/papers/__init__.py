"""The papers' tables and figures: protocols with the printed numbers, and running them again."""
