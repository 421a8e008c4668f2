"""The broker's core with a real store, without a network."""
