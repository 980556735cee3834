"""The GPUs of this machine: which exist, what they do, and who may use them."""
