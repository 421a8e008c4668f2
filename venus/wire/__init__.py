"""Generated from protos/ (`make protos`). Only codec and rpc look in here."""
