"""Rules for the columns of a target: masked, dropped or renamed, before anything else sees a row."""
