"""Sessions and jobs of Spark."""
