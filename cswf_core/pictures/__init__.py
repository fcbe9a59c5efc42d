"""Pictures of samples, of flows and of several runs, drawn to files."""
