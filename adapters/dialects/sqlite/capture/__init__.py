"""Cuts of SQLite: what capture reads in one snapshot and commits in one local transaction."""
