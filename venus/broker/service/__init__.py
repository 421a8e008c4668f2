"""The process: gRPC, HTTP, and what an operator sees."""
