"""What is on disk: RocksDB behind one class, its keys, its format, its free space."""
