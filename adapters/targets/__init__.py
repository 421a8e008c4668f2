"""Targets, the databases that receive changes: a folder for each kind, and the contract that all of them fulfil."""
