"""Columns of a target: masked, dropped or renamed by rules, before anything else sees a row."""
