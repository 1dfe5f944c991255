"""What crosses processes: records, the channel that carries them, and files that outlive ranks."""
