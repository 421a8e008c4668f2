"""DDL: how tables are made and follow the source, the application's own types, tables that were there before."""
