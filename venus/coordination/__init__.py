"""Coordinators of a cluster, as `venus.replication.records.Coordinator`: etcd, with its records and their changes."""
