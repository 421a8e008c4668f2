"""`venus assess`: a source's tables, which of them VENUS carries, a forecast of time and space. Installs nothing."""
