"""Reference tables in the lake: gold copies their rows and joins changes with them; files and lookups write them."""
