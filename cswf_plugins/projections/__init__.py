"""Where directions come from, one plugin per file."""
