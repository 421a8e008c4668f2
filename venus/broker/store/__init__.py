"""The data of the broker on disk: RocksDB behind one class, its keys, its format, its free space."""
