"""What streams ask of their entries: the documents in their rules, and what they mean. Pure."""
