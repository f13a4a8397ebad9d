"""What streams ask of their entries: schema registry, lenses, profiles, search config; pure."""
