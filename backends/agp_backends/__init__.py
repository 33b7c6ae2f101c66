"""The plug-ins of agp, one private module per array library; agp finds them by their entry points."""
