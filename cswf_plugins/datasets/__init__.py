"""Where data come from, one plugin per file."""
