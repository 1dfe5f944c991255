"""Ranks on several machines, by agents that a coordinator connects.

::

    pytest process            remote_launcher.py  a launcher; its host is the coordinator
    coordinator (a process)   coordinator.py      takes the messages of a host; rank_proxy.py holds
                                                  the descriptors of each rank
      its engine              engines/            starts the agents, or waits for them
      TCP connections         agent_connection.py frames; handshake.py has authentication and
                                                  integrity
    agent (a process)         agent/agent.py      on each node, also node 0: a host and its ranks

``plugin.py`` gives the core a launcher and a layout by hooks; ``machine_messages.py`` has the
messages of launcher and coordinator. Descriptors stay on their machine: the agent reads those of a
rank, and the coordinator writes the same into those that the launcher reads. The end of a rank
follows after all of its output. ``clocks.py`` measures how far the clocks of each machine are
ahead, so that reports and traces have the time of node 0. An agent leases the GPUs of its machine.
"""
