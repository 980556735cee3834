"""Commands about a profile's machines."""
