"""Commands about what runs have left."""
