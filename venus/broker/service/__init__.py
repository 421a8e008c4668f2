"""The broker process: its gRPC and HTTP servers, its metrics and its status page."""
