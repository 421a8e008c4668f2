"""`venus assess`: report which tables of a source VENUS can carry, and the time and space needed. Installs nothing."""
