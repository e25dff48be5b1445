-- Written by evlbi 0.1.0: its files keep this layout.
PRAGMA application_id = 1163286337;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE campaign (plan text not null) strict;
INSERT INTO "campaign" VALUES('{"target":"127.0.0.1:18620","stream":{"size":1472,"spacing":{"bits_per_second":1000000},"burst":1,"count":18446744073709551615},"there":true,"back":true,"window":1.0,"every":null}');
CREATE TABLE run (
    id integer primary key,
    begun real not null,       -- seconds since 1970, UTC
    ended real,                -- null of one that was killed
    reason text                -- why, where it was not to end then
) strict;
INSERT INTO "run" VALUES(1,1.79562776853370118139e+09,1.79562777163425111768e+09,NULL);
CREATE TABLE result (
    id integer primary key,
    run integer not null references run(id),
    direction text not null,   -- there or back
    begin real not null, end real not null,
    sent integer not null, received integer not null, uniq integer not null,
    lost integer not null,     -- network_lost + host_lost + unattributed
    network_lost integer not null, host_lost integer not null, unattributed integer not null,
    duplicates integer not null, reordered integer not null, late integer not null,
    runs integer not null,     -- runs of consecutive losses
    rate_sent real not null, rate_received real not null, -- bits of UDP payload per second
    wire_factor real not null, -- bytes on an Ethernet for each of payload
    jitter_ns real not null, pdv_p999_ns real,
    detail text not null       -- JSON
) strict;
INSERT INTO "result" VALUES(1,1,'there',1.7956277685676953793e+09,1.79562776956865572924e+09,85,85,85,0,0,0,0,0,0,0,0,9.99999650299214059515e+05,9.99999650299214059515e+05,1.04483695652173902423e+00,3.06547932253171347832e+03,80379.0,'{}');
INSERT INTO "result" VALUES(2,1,'back',1.79562776958428335196e+09,1.7956277705852432251e+09,85,85,85,0,0,0,0,0,0,0,0,1.0000001266789414221e+06,1.0000001266789414221e+06,1.04483695652173902423e+00,5.21990661243173599374e+03,20620.0,'{}');
CREATE INDEX result_by_time on result(begin);
COMMIT;
