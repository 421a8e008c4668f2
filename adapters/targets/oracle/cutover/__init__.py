"""The steps that switch the application to or from an Oracle database."""
