"""Learning as data come: exact counts of the data along directions that stay."""
