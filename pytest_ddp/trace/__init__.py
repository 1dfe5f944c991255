"""``--ddp-trace``: what every rank did and when, for trace viewers and as a picture.

events     the lines that a rank wrote -> phases and collectives
timeline   those of all ranks, and where each one stood at the end
chrome     -> trace-event JSON, for Perfetto and chrome://tracing
scale, lanes, page   -> a page with a picture
files      what is written where
"""
