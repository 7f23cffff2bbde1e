"""Tools that reach the network: `browse`, `search`, and the guard that decides which addresses they may reach."""
