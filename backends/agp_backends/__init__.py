"""The plug-ins of agp, one private module per array library; they are found by entry point, never by name."""
