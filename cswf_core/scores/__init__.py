"""Scores as they are written down: the document `metrics.json`, seeds taken together, tables, differences."""
