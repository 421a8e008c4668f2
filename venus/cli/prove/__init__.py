"""`venus prove`: tries every behaviour that VENUS relies on, on the user's own server, in a scratch schema."""
