"""Writing of rows into one table: a method for each number of rows, and the handling of refused rows."""
