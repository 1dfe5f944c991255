"""How launched ranks begin: forks of a server that has imported torch and computed nothing."""
