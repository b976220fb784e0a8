"""Tables of gold made anew from all changes that gold has read."""
