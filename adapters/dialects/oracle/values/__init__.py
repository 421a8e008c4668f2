"""Values and rows of Oracle as canonical text and packed sections."""
