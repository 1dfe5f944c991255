"""What provides the machines of a session: one file for each engine, imported if it is used."""
