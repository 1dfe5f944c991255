"""Where ranks stand, what follows from it, and whether their collectives were alike."""
