"""Where changes go: one folder for each kind of target, and the contract that all of them fulfil."""
