"""What the log does to a business: half messages, the state that follows from them, the folding of rows."""
