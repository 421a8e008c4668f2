"""`venus demo`: the whole path on one machine, with the real commands, in under two minutes."""
