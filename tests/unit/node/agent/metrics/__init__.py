"""Files of metrics as programs write them."""
