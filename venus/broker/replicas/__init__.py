"""The broker's side of replication: drives `venus.replication`, with logs, lines and the coordinator."""
