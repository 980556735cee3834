"""Commands that inspect ranks."""
