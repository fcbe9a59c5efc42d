"""Scores of runs beside each other: seeds taken together, differences beyond noise, tables."""
