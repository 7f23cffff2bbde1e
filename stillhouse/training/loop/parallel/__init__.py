"""Several processes, each with a device, that train one student together."""
