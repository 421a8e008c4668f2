"""Random tables, predicates and row filters for property tests."""
