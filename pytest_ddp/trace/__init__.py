"""``--ddp-trace``: a timeline of all ranks, for trace viewers and as a picture.

events     the lines that a rank wrote -> phases and collectives
timeline   the events of all ranks, and the final state of each rank
chrome     -> trace-event JSON, for Perfetto and chrome://tracing
scale, lanes, page   -> a page with a picture
files      the files and their names
"""
