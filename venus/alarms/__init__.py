"""Alarms: which ones are active since when, and notification by webhook, e-mail and command."""
