"""Sources of data, one plugin per file."""
