"""Decodes Mark 4 files with `baseband`: for each frame its offset, its time, and the SHA-256 of each channel's samples as int8.

    baseband_mark4.py [TRACKS:FILE ...]     without files: the samples of baseband
"""

import hashlib
import json
import os
import sys

import baseband.data
import numpy as np
from baseband import mark4

SAMPLES = [
    ("SAMPLE_MARK4", 64),
    ("SAMPLE_MARK4_32TRACK", 32),
    ("SAMPLE_MARK4_32TRACK_FANOUT2", 32),
    ("SAMPLE_MARK4_16TRACK", 16),
    ("SAMPLE_MARK4_64TRACK_FANOUT2_FT", 64),
]

given = [argument.split(":", 1) for argument in sys.argv[1:]]
given = [(path, int(tracks)) for tracks, path in given]
files = []
for path, tracks in given or [(getattr(baseband.data, name), tracks) for name, tracks in SAMPLES]:
    frames = []
    with mark4.open(path, "rb", ntrack=tracks, decade=2010) as file:
        file.find_header(forward=True)
        while True:
            offset = file.tell()
            if offset + 2500 * tracks > os.path.getsize(path):
                break
            frame = file.read_frame()
            skipped = 160 * frame.header.fanout
            samples = np.rint(frame.data[skipped:]).astype(np.int8)
            columns = [hashlib.sha256(column.tobytes()).hexdigest() for column in samples.T.copy()]
            frames.append({"offset": offset, "time": frame.header.time.isot, "columns": columns})
    files.append({"path": path, "tracks": tracks, "frames": frames})
print(json.dumps(files))
