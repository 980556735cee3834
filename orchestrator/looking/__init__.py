"""How a run stands: its evidence, gathered and judged. Nothing here writes, starts or ends anything."""
