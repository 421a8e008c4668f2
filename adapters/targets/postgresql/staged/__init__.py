"""The scale-out apply: increments laid down by tasks that run elsewhere, taken over in one transaction."""
