"""A source, a broker and a target together."""
