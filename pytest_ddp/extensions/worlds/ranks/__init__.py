"""What runs in ranks; also usable without the plugin."""
