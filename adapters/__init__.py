"""Adapters of the databases on both sides of VENUS: the sources and the targets."""

if __name__ != "venus.adapters":  # the repository root is on sys.path: a second copy of every class would be made
    raise ImportError("import venus.adapters, not adapters")
