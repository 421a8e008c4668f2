"""What VENUS knows of each database; one folder each, all behind `contract`."""
