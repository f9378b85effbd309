"""What methods are written against: contracts, registry and specs.  Nothing here communicates."""
