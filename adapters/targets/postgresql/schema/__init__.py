"""What tables look like at the target: DDL, the application's own types, tables that were there before."""
