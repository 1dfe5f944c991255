"""Host and ranks as processes: started, heard, ended, with the GPUs that they may use."""
