"""The commands, one module each with a `main` that returns an exit code. `cli` imports the one that is called for."""
