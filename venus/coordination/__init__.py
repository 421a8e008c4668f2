"""Where the brokers of a cluster agree: etcd, or the memory of one process, behind `venus.replication.coordinator`."""
