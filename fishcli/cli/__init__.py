"""The commands people type. Nothing heavy is imported before a command runs."""
