"""Coordinators of a cluster behind `venus.replication.coordinator`: etcd, or the memory of one process."""
