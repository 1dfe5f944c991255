"""WRT: who writes the files that ranks share, when others see them, and who may act alone."""
