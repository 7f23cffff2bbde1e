"""Tools that reach the network: `browse`, and the guard that decides which addresses they may reach."""
