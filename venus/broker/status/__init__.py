"""The status of the broker: production, consumption, lag, alarms (VENUS 3.2)."""
