"""Other systems in the same harness, each by its usual Python client; bench/README.md says how to install them."""
