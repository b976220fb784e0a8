"""The Databricks bundle's files, and what is wrong with them that its own command line lets through."""
