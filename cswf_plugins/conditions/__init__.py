"""What a flow is conditioned on, one plugin per file."""
