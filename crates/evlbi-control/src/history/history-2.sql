-- Written by evlbi 0.1.0: its files keep this layout.
PRAGMA application_id = 1163282505;
PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE event (
    id integer primary key autoincrement, time real not null, host text not null, flow text, text text not null
) strict;
INSERT INTO "event" VALUES(1,1.79562777171035051343e+09,'vm',NULL,'the agent begins, 0 flows run');
INSERT INTO "event" VALUES(2,1.79562777468979215618e+09,'vm','rec','starts: evlbi recv --to=/var/lib/evlbi/recordings/a.vdif --json -- udp://127.0.0.1:12630');
INSERT INTO "event" VALUES(3,1.79562777895536112788e+09,'vm',NULL,'the agent ends');
CREATE TABLE flow (id integer primary key, name text not null unique) strict;
INSERT INTO "flow" VALUES(1,'rec');
CREATE TABLE fringe (
    flow integer not null,
    baseline text not null, span integer not null, time integer not null,
    amplitude real not null, snr real not null, delay_s real not null, weight real not null, -- means
    primary key (span, flow, time, baseline)
) strict, without rowid;
CREATE TABLE sample (
    flow integer not null,     -- of the table flow
    span integer not null,     -- seconds: 1 or 30
    time integer not null,     -- when it begins, seconds since 1970
    rate_bps real not null,    -- mean; counts are those of the span, datagrams
    expected integer not null, lost integer not null,
    host_lost integer not null, network_lost integer not null, unattributed integer not null,
    offered integer not null, shed integer not null,
    ring_fill real not null,   -- highest
    primary key (span, flow, time)
) strict, without rowid;
INSERT INTO "sample" VALUES(1,1,1795627774,0.0,0,0,0,0,0,0,0,0.0);
INSERT INTO "sample" VALUES(1,1,1795627775,0.0,0,0,0,0,0,0,0,0.0);
INSERT INTO "sample" VALUES(1,1,1795627776,0.0,0,0,0,0,0,0,0,0.0);
INSERT INTO "sample" VALUES(1,1,1795627777,0.0,0,0,0,0,0,0,0,0.0);
COMMIT;
