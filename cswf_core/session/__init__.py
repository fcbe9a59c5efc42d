"""Runs from start to end: launched, resumed, updated with new data, or swept over several values."""
