"""Computes the tables of sessions from changes. Pure."""
