"""Helpers for notebooks: parameters, tables, pictures, and conversion to Jupyter's format."""
