"""The broker's side of replication: drives `venus.replication` with logs, connections and the coordinator."""
