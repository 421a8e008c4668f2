"""The commit thread and its work: commands of producers, consumers and mirrors, and upkeep."""
