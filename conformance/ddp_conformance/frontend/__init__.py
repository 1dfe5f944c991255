"""How people ask for checks, and how they are told: pytest, the command, reports."""
