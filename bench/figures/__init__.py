"""The papers' figures, a module each; catalogue.py lists them, `python -m bench.all` measures them."""
