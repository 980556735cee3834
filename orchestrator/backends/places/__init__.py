"""GPUs and slots of machines that several runs share: held by a start's agents, or waited for in a queue."""
