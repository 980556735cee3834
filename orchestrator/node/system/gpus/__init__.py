"""The GPUs of this machine: which there are, what they do, and who may use them."""
