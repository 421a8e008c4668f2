"""`venus support`: a bundle for a bug report, without rows and without secrets."""
