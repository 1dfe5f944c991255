"""A Lightning ResNet with progressive resizing, on one rank or many.

``python -m ddp_reference.resnet.make_data DIR`` makes a data set,
``python -m ddp_reference.resnet --config local --data DIR`` trains on it, alone or
under torchrun. The parts, each usable by itself: ``data.ImageNetDataModule``,
``module.ResNetModule``, ``resolution.ResolutionScheduleCallback``,
``text_log.TextLoggingCallback``, ``run_logger.RunLogger``, ``metrics.SampleMean``.
"""
