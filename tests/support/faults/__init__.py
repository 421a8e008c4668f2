"""What kills, cuts, delays or damages something."""
