"""The queue of committed batches: their places, their readers, and how far back they are kept."""
