"""Process-wide settings and facts: memory, open files, clocks, signals and the folders of the user."""
