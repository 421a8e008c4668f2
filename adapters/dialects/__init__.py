"""The database dialects, one folder for each database; all of them implement `contract`."""
