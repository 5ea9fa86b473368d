"""Losses inside other people's trainers, one file per library. Import the file by its name."""
