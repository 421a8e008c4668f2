"""The queue of committed batches: reading it, reducing and masking batches for a reader, and sending them early."""
