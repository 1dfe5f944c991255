"""The part in the pytest process: turns an item into the reports of its run on ranks."""
