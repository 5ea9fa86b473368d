"""Experiments: several trainings on the same data, compared with care."""
