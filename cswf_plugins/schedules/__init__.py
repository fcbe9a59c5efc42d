"""Schedules of a flow, one plugin per file."""
