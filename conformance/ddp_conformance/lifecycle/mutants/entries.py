"""LIF-01 to LIF-09: training programs with the defects that such programs have in the wild."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.lifecycle.mutants import beginnings, ending_mutants, files, programs
from ddp_conformance.lifecycle.subjects import Training

PADS = frozenset({"pads"})
SHORT = 2.0
"""Seconds; for programs that end in no time or never."""


def mutant(
    guarantee: str, run: Callable[[], None], defect: str, *traits: str, **options: Any
) -> Mutant:
    """A mutant on two ranks."""
    subject = Training(run=run, traits=PADS | set(traits), **options)
    return Mutant(subject, guarantee, defect, (2,))


MUTANTS = (
    mutant("LIF-01", beginnings.raise_on_last_rank, "a model that raises on rank 1"),
    mutant("LIF-01", beginnings.crash_in_construction, "SIGSEGV in model construction"),
    mutant("LIF-01", beginnings.crash_in_wrap, "SIGSEGV in the wrap"),
    mutant("LIF-01", beginnings.crash_in_compilation, "SIGSEGV in compilation"),
    mutant("LIF-01", beginnings.crash_in_forward, "SIGSEGV in the first forward"),
    mutant("LIF-01", ending_mutants.exit_in_finally, "finally: os._exit(0)", name="never_returns"),
    mutant("LIF-02", beginnings.load_before_init, "loader before init"),
    mutant("LIF-02", beginnings.shard_before_init, "rank 0 of 1 everywhere"),
    mutant("LIF-02", beginnings.draw_before_init, "the same draw on every rank", "replacement"),
    mutant("LIF-02", beginnings.pass_before_init, "the same endless passes", "endless"),
    mutant("LIF-02", beginnings.shard_a_set, "shares of a set of names"),
    mutant("LIF-03", beginnings.read_before_written, "others read what rank 0 writes, at once"),
    mutant("LIF-03", files.all_remove_at_once, "glob, then unlink, on every rank at once"),
    mutant("LIF-03", files.all_remove_old, "old checkpoints removed by every rank"),
    mutant("LIF-03", files.all_rename_best, "exists(), then rename"),
    mutant("LIF-03", files.removed_under_reader, "removed before others have read"),
    mutant("LIF-03", files.removed_after_a_while, "removed half a second after it was read"),
    mutant("LIF-03", files.removed_by_a_timer, "removed by the process of a timer"),
    mutant("LIF-03", files.removed_before_a_look, "removed before others have looked"),
    mutant("LIF-04", beginnings.optimize_before_fsdp1, "optimizer before FSDP1"),
    mutant("LIF-04", beginnings.optimize_before_fsdp2, "optimizer before fully_shard"),
    mutant("LIF-04", beginnings.optimize_one_layer, "a layer replaced after the optimizer"),
    mutant("LIF-05", ending_mutants.save_compiled, "names of wrappers in a checkpoint", "compiles"),
    mutant("LIF-05", ending_mutants.train_other_when_compiled, "compiled code differs", "compiles"),
    mutant("LIF-05", programs.train_plainly, "compiles nothing", "compiles", name="not_compiled"),
    mutant("LIF-06", ending_mutants.keep_group, "no destroy_process_group"),
    mutant("LIF-06", ending_mutants.keep_child, "a child process"),
    mutant("LIF-06", ending_mutants.keep_thread, "a thread"),
    mutant("LIF-06", ending_mutants.keep_port, "a listening socket"),
    mutant("LIF-06", ending_mutants.keep_segment, "shared memory"),
    mutant("LIF-07", ending_mutants.exit_in_finally, "finally: os._exit(0)", deaths=("raises",)),
    mutant("LIF-07", ending_mutants.swallow_errors, "except Exception: print", deaths=("raises",)),
    mutant("LIF-07", ending_mutants.end_in_hook, "excepthook: os._exit(0)", deaths=("raises",)),
    mutant("LIF-07", ending_mutants.leave_in_hook, "excepthook: sys.exit()", deaths=("raises",)),
    mutant("LIF-07", ending_mutants.end_at_exit, "atexit: os._exit(0)", deaths=("raises",)),
    mutant("LIF-08", ending_mutants.wait_for_ever, "rank 1 waits for ever", timeout=SHORT),
    mutant("LIF-08", ending_mutants.receive_first, "all ranks receive first", timeout=SHORT),
    mutant(
        "LIF-08",
        ending_mutants.retry_for_ever,
        "retries without a peer",
        patience=SHORT,
        deaths=("is killed",),
    ),
    mutant("LIF-09", ending_mutants.fall_back_alone, "try nccl, except gloo", "falls_back"),
)

BENIGN_VARIANTS = (
    BenignVariant(
        Training(run=programs.train_plainly, traits=PADS),
        "no barrier after init or wrap, an optimizer from before the DDP wrap, a warm-up from 0",
        (1, 2),
    ),
    BenignVariant(
        Training(run=beginnings.draw_in_shares, traits={"replacement"}, deaths=("is killed",)),
        "weighted draws that the ranks share",
        (2,),
    ),
    BenignVariant(
        Training(run=beginnings.pass_in_shares, traits={"endless"}, deaths=("is killed",)),
        "endless passes that the ranks share",
        (2,),
    ),
    BenignVariant(
        Training(run=beginnings.shard_a_sorted_set, deaths=("is killed",)),
        "shares of a set of names, sorted",
        (2,),
    ),
    BenignVariant(
        Training(run=files.remove_in_peace, traits=PADS, deaths=("is killed",)),
        "files that all ranks remove if they are there, and rank 0 when all have read them",
        (2,),
    ),
    BenignVariant(
        Training(run=files.all_remove_at_once_if_there, traits=PADS, deaths=("is killed",)),
        "glob, then unlink of what is there, on every rank at once",
        (2,),
    ),
    BenignVariant(
        Training(run=ending_mutants.log_in_hook, traits=PADS, deaths=("raises",)),
        "hooks for exceptions and for the end that keep the exit code",
        (2,),
    ),
    BenignVariant(
        Training(
            run=programs.train_compiled,
            traits=PADS | {"compiles", "falls_back"},
            deaths=("is killed",),
        ),
        "a compiled DDP that saves its bare module, gloo by the votes of all ranks",
        (2,),
    ),
    BenignVariant(
        Training(run=programs.train_in_shards, traits=PADS, deaths=("is killed",)),
        "a rank that has an empty part of all parameters",
        (2,),
    ),
)
