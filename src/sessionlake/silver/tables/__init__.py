"""The tables of sessions, computed from changes. Pure."""
