"""Views and table functions over silver and gold."""
