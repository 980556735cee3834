"""How a machine is spoken to: connections, requests over them, and what a node is sent."""
