"""An agent's turns: ask the model, run the tools it calls, ask again, until it answers or a limit is reached."""
