"""Random histories of a first load that overlaps the first read of the source, with kills at every step."""
