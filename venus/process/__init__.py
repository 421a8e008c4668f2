"""Settings of this process: memory, descriptors, clocks, signals and the folders of its user."""
