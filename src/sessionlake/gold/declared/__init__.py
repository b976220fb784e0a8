"""Tables of gold as the configuration declares them."""
