"""Reads a VDIF file from end to end with `baseband` and prints what it found as JSON.

    baseband_stream.py FRAME_RATE FILE

Every frame set is read through the stream reader, whose position must be the time that its header says.
"""

import json
import sys

import astropy.units as u
import numpy as np
from baseband import vdif

rate, path = float(sys.argv[1]), sys.argv[2]
with vdif.open(path, "rb") as raw:
    header = vdif.VDIFHeader.fromfile(raw)
    raw.seek(0)
    headers = []
    while True:
        try:
            frame = raw.read_frame()
        except EOFError:
            break
        headers.append(frame.header)
samples = header.samples_per_frame
with vdif.open(path, "rs", sample_rate=rate * samples * u.Hz) as stream:
    data = stream.read()
    invalid = [h["frame_nr"] for h in headers if h["invalid_data"]]
    late = [
        number
        for number, h in enumerate(headers)
        if abs((h.get_time(frame_rate=rate * u.Hz) - stream.start_time).to_value(u.s) - number / rate) > 1e-9
    ]
    found = {
        "frames": len(headers),
        "samples": int(stream.shape[0]),
        "samples_per_frame": int(samples),
        "start": stream.start_time.isot,
        "stop": stream.stop_time.isot,
        "invalid": [int(number) for number in invalid],
        "late": late,
        "zero_frames": [
            n for n in range(len(headers)) if not np.any(data[n * samples : (n + 1) * samples])
        ],
    }
print(json.dumps(found))
