"""The side of the pytest process: from an item to the reports of its attempt on ranks."""
