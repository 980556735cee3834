"""The files that a user writes: found, read with the place of every value, merged, and told what is wrong with them."""
