"""Text for people: numbers, sentences, masked URLs, and hints for misspelt names."""
