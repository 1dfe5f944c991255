"""Hooks of pytest-ddp, for its own extensions and for other plugins.

They are implemented as pytest's own are, by a plugin or a conftest file. Where pytest-ddp need not
be installed, mark an implementation with ``@pytest.hookimpl(optionalhook=True)``.

Each is called either in the pytest process (an xdist worker is one, too) or in the ranks. What
sends data from one side to the other returns a dict by the name of the sender, so that several
plugins can do so; its values must be JSON-able.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_ddp.fixture import Ddp
    from pytest_ddp.launch.launcher import Launcher
    from pytest_ddp.launch.streams import PieceDisplay
    from pytest_ddp.protocol.host_messages import Session
    from pytest_ddp.rank.operations.stream import Operations
    from pytest_ddp.session.planned_runs import RunPlan
    from pytest_ddp.settings.layout import Layout
    from pytest_ddp.settings.mark import DdpTest, MarkArgument
    from pytest_ddp.settings.plan import LaunchPlan


# ------------------------------------------------------------------ in the pytest process


@pytest.hookspec()
def pytest_ddp_mark_arguments() -> Mapping[str, MarkArgument]:  # type: ignore[empty-body]
    """Return arguments to add to the ``ddp`` mark, by name.

    Called once, when pytest is configured. The check of an argument returns the value to keep, or
    raises a :class:`ValueError` whose text states what is allowed, such as ``it is a number``; the
    error that users see also has the name, the value and the test. Values are in
    ``item.stash[pytest_ddp.settings.marked_items.MARK].extra`` from the end of collection on.
    """


@pytest.hookspec(firstresult=True)
def pytest_ddp_make_test(item: pytest.Item) -> DdpTest | None:
    """Return how an item without a ``ddp`` mark is a ddp test; None to leave it as it is.

    Called for each such item when its file has been collected. A :class:`pytest.UsageError` is an
    error of the collection. Stops at the first result.
    """


@pytest.hookspec(firstresult=True)
def pytest_ddp_world_sizes(metafunc: pytest.Metafunc) -> Sequence[int] | None:
    """Return the world sizes by which a test function without a ``ddp`` mark is parametrized.

    Called in the ranks, too: parameters must be the same there. What :func:`pytest_ddp_make_test`
    returns for its items has the same sizes as a list. Stops at the first result.
    """


@pytest.hookspec()
def pytest_ddp_own_environment(config: pytest.Config) -> AbstractContextManager[None]:  # type: ignore[empty-body]
    """Return a context in which the pytest process has the environment that it was started with.

    For plugins that set ``RANK`` and the like while test files are collected. It is entered where
    the launcher of this process is looked for.
    """


@pytest.hookspec()
def pytest_ddp_attempt_begins(item: pytest.Item) -> Mapping[str, Any]:  # type: ignore[empty-body]
    """Return what plugins in the ranks get before this test, by the name of the sender.

    Called before each attempt, also of a test that is run again.
    """


@pytest.hookspec(firstresult=True)
def pytest_ddp_plan_runs(item: pytest.Item, launch: LaunchPlan | None) -> RunPlan | None:
    """Return a plan of several runs for a ddp test; None to run it once.

    Called before the test runs, and again before each rerun by a plugin such as
    pytest-rerunfailures. Whatever the plan does, pytest sees one item: ``-x``, ``--lf``, xdist and
    junitxml get the reports of the run that counts, with the time of all. Each run is a full
    attempt, with set-up and teardown, an empty ``tmp_path`` and the whole timeout; fixtures wider
    than a test stay between the runs. Of the other runs nothing is shown, except their output with
    ``-s``. A mistake of the generator is an error of the test. Stops at the first result.

    :param launch: How its ranks are launched: their number, backend, GPUs, machines and timeout.
        None if that cannot be decided; the test then is an error.
    """


@pytest.hookspec()
def pytest_ddp_findings(item: pytest.Item, sent: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Return why a test must not pass that passes on all ranks; None where nothing is found.

    Called after an attempt of which :func:`pytest_ddp_test_ended` returned something on any rank.
    The text becomes that of the failed call, with lines wrapped that are too long; its first line
    is the verdict, which the short summary and all files show. A test that has failed keeps its own
    text, and a skipped one is skipped. To an ``xfail`` mark the call fails as with
    :func:`pytest.fail`, which its ``raises`` may exclude.

    :param sent: What each rank has sent, by rank; ranks that died or did not end are missing.
    """


@pytest.hookspec()
def pytest_ddp_test_finished(item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
    """Called when a ddp test is over, with the reports that pytest gets next."""


@pytest.hookspec(firstresult=True)
def pytest_ddp_make_launcher(
    config: pytest.Config, session: Session, display: PieceDisplay
) -> Launcher | None:
    """Return what starts and ends the ranks of this session; None for the core's own.

    Called when a ddp test is found first, and again after a host has died. A launcher derives from
    :class:`pytest_ddp.launch.launcher.Launcher`, whose constructor takes ``session`` and
    ``display``. Most override one method: ``start_host(theirs, folder, log)`` starts the
    *host*, the process that imports what all ranks share and forks them, and returns its
    :class:`subprocess.Popen`. What it may call with the same three arguments is
    :func:`pytest_ddp.launch.host_process.start_host`, which also takes variables for host and ranks
    (``environment``) and a command that runs the host in its own process (``prefix``). If
    there can be no launcher, a :class:`pytest.UsageError` ends the session before its first test
    (under xdist each test that needs ranks fails with it), and a
    :class:`pytest_ddp.launch.launcher.NoRankError` is an error of each test that needs ranks. Stops
    at the first result.

    :param session: What the host's pytest needs to know.
    :param display: Shows what ranks write and log while they run.
    """


@pytest.hookspec(firstresult=True)
def pytest_ddp_make_layout(config: pytest.Config) -> Layout | None:
    """Return where ranks can run, and on which GPUs; None for this machine and its GPUs.

    For launchers that have ranks elsewhere. Called while options are read, if they ask for more
    ranks than a machine takes, and before the first test is planned. Constructors of a
    :class:`pytest_ddp.settings.layout.Layout` must not wait for anything; its ``gpus_for`` and
    ``place`` may.
    """


@pytest.hookspec(firstresult=True)
def pytest_ddp_keep_launcher(config: pytest.Config) -> bool | None:
    """Return True to have the launcher from the start of the session to its end.

    Without it the launcher is started when a ddp test is found, and ended where none is collected.
    """


# ------------------------------------------------------------------ in the ranks


@pytest.hookspec()
def pytest_ddp_withheld_hooks(plugin_name: str) -> Sequence[str]:  # type: ignore[empty-body]
    """Return the names of pytest's hooks that host and ranks do not call of a plugin.

    Called for each plugin that is registered there, with its registered name.
    """


@pytest.hookspec()
def pytest_ddp_rank_begins(
    config: pytest.Config, announce_end: Callable[[tuple[int, ...], bool], None]
) -> None:
    """Called once in each rank, after the user's plugins and conftest files have been loaded.

    :param announce_end: Says how the process of the running test may end and still pass: with one
        of these codes (negative for signals), or if the second argument is true, with any other.
        ``announce_end((), False)`` takes it back.
    """


@pytest.hookspec()
def pytest_ddp_operations(operations: Operations) -> None:
    """Called once in each rank, before its first test, with the stream of its operations.

    ``operations.subscribe(subscriber, needs)`` has the methods of ``subscriber`` called at each
    collective, message and operation of the ``ddp`` fixture, from then on until the function that
    it returns is called. Each method is optional:

    - ``before(operation)`` on the thread that issues it. It may hold the thread, within
      ``with operations.holding(words):``, or end the process. An exception that it returns is
      raised by the user's call, and the operation is not issued.
    - ``returned(operation, work, error)``, once after each ``before``: the issue has returned. An
      asynchronous operation is not complete by then; nothing announces that but a wait.
    - ``waited(operation, error)``: a wait for its ``Work`` has ended.
    - ``passed_on(operation)`` and ``dropped(operation)``: its ``Work`` was given to a Future or to
      C++, or is gone without a wait.

    What a method raises by itself is a mistake of its own: it is a warning with the subscriber's
    name, and the user's call goes on. What a subscriber issues is announced to nobody. Of several,
    the latest is called first before an operation and last after it.

    An operation has ``form`` (its row in :mod:`pytest_ddp.rank.operations.table`), ``name``,
    ``group``, ``root``, ``tag``, ``site``, ``issuer`` and, until ``returned`` is over, ``tensors``,
    ``nbytes``, ``given`` and ``process_group``. It is one object for all its events.

    ``needs`` names what costs, and is there only while somebody needs it: ``Needs.CPP`` for
    operations that C++ issues by itself, such as DDP's gradients; ``Needs.ARGUMENTS`` for the
    arguments by torch's names, ``operation.given.get("async_op")``, with which ``before`` is
    called at the operator instead of the method, when the plugin has counted the operation;
    ``Needs.USES`` for ``passed_on`` and ``dropped``. An operator that a method of
    ``ProcessGroup`` or a functional collective calls is the same operation; any other comes
    from C++.

    ``operations.waits()`` returns what each thread waits for, by thread identifier, and takes no
    lock.
    """


@pytest.hookspec()
def pytest_ddp_test_begins(item: pytest.Item, sent: Mapping[str, Any]) -> None:
    """Called in each rank before the test's set-up; ``ddp`` and the process group are there.

    :param sent: What :func:`pytest_ddp_attempt_begins` has returned, of all senders.
    """


@pytest.hookspec()
def pytest_ddp_test_ended(item: pytest.Item) -> Mapping[str, Any]:  # type: ignore[empty-body]
    """Return what plugins in the pytest process get after this test, by the name of the sender.

    Called in each rank after the test's teardown and what the rank restores after it.
    """


@pytest.hookspec()
def pytest_ddp_fixture_attributes(ddp: Ddp) -> Mapping[str, object]:  # type: ignore[empty-body]
    """Return attributes to add to the object of the ``ddp`` fixture, by name.

    Called once in each rank, before its first test.
    """
