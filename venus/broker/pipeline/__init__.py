"""The commit thread and what runs in it: producers' commands and upkeep."""
