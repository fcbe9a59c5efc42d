"""Number crunching, apart from what it is for; rows are directions, columns are samples."""
