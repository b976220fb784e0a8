"""Commits one micro-batch of gold, table by table: averages, products, final rows and late points."""
