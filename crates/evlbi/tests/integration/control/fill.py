"""Gives a flow of an agent a past of thirty days in half minutes, with an hour three days ago in which a tenth was lost."""

import sqlite3
import sys
import time

STEP = 30
NOW = int(time.time()) // STEP * STEP
COLUMNS = (
    "flow, span, time, rate_bps, expected, lost, host_lost, network_lost, unattributed, offered, shed, ring_fill"
)
WORST = (NOW - 3 * 86_400) // 3600 * 3600

history = sqlite3.connect(sys.argv[1], timeout=60)
with history:
    history.execute("insert or ignore into flow (name) values ('ef')")
    (flow,) = history.execute("select id from flow where name = 'ef'").fetchone()
    for begin in range(NOW - 30 * 86_400, NOW - 60, STEP):
        lost = 100 if 0 <= begin - WORST < 3600 else 0
        row = (flow, STEP, begin, 1e8, 1000, lost, 0, lost, 0, 0, 0, 0.1)
        history.execute(f"insert into sample ({COLUMNS}) values ({', '.join('?' * len(row))})", row)
