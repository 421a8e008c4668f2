"""The full data: how it is made of the queue, cut, and read in parts."""
