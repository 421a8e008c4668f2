"""Cuts of MariaDB or MySQL: what capture reads in one snapshot and commits in one local transaction."""
