"""The steps that switch the application to or from a SQLite file."""
