"""Estimators of one-dimensional distributions, one plugin per file."""
