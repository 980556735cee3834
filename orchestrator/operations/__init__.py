"""What the commands do; nothing here prints or exits."""
