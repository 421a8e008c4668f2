"""The steps that switch the application to or from a MariaDB or MySQL database."""
