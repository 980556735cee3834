"""Commands that look into ranks."""
