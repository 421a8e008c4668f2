"""The replicated log: the only thing on disk that is not derived from something else."""
