"""Proposes a feed for messages whose form is not known, from a sample of them."""
