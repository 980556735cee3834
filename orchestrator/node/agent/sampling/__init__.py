"""How busy this node, its ranks and its GPUs are: counters read from /proc, as samples in a file of bounded size."""
