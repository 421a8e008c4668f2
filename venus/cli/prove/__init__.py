"""`venus prove`: every behaviour that VENUS relies on, tried on the user's own server in a scratch schema."""
