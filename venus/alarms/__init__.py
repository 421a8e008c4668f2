"""Alarms: which ones stand since when, and telling people by webhook, e-mail and command."""
