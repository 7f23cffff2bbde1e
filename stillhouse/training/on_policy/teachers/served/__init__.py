"""Teachers behind servers; `connect` makes one from the config, tried before it is used."""
