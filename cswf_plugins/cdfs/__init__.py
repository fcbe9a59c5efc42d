"""How one-dimensional distributions are estimated, one plugin per file."""
