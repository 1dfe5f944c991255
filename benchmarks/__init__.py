"""What a distributed test costs: pytest-ddp beside what a user would pick instead."""
