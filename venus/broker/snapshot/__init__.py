"""The full data: built from the queue, cut into snapshots, and read in parts."""
