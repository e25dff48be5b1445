"""Decodes the Mark 4 samples of baseband: for each frame its offset, its time, and the SHA-256 of each channel's samples as int8."""

import hashlib
import json
import os

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

files = []
for name, tracks in SAMPLES:
    path = getattr(baseband.data, name)
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
