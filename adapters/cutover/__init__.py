"""The cut-over: the day on which a target becomes the application's own database."""
