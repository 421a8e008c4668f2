"""From rows to bytes and back: the only place that knows both the model and the wire."""
