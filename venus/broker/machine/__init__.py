"""The state machine of a business, which applies its log: half messages, decisions, and the folding of rows."""
