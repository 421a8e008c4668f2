"""Writing of rows into one table: a way for each number of rows, and the handling of refused rows."""
