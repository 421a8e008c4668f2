"""Values and rows of MariaDB or MySQL as canonical text and packed sections."""
