"""What the broker says of itself: production, consumption, lag, alarms (VENUS 3.2)."""
