"""The arithmetic that a device cares about; rows are directions, columns are samples."""
