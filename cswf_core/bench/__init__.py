"""Benchmarks of a step: the measurement, a naive step to compare with, and the report."""
