"""`venus assess`: what a source has, what VENUS carries of it, what that will take; before anything is installed."""
