"""gRPC: channels, the mapping of errors, and the clients that the adapters use."""
