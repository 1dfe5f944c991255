"""A Lightning ResNet with progressive resizing, on one rank or many.

``python -m ddp_reference.resnet.make_data DIR`` makes a data set,
``python -m ddp_reference.resnet --config local --data DIR`` trains on it.
"""
