"""Statements of an installation in Oracle's SQL: tables, triggers, views, and columns of inline capture."""
