"""Random histories of switches between two databases, with kills at every step."""
