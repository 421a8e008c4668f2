"""Statements in Oracle's language, and the DDL that others run."""
