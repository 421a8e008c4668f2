"""The cut-over, by which a target becomes the application's own database."""
