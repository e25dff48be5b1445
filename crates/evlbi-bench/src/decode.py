"""Decodes a recording with baseband, three times; prints the median time per sample and channel in nanoseconds.

Usage: decode.py FORMAT FILE SAMPLE_RATE (in Hz)
"""
import sys
import time
from statistics import median

from astropy import units
from astropy.time import Time
from baseband import mark4, vdif

kind, path, rate = sys.argv[1:]
rate = float(rate) * units.Hz
times = []
for _ in range(3):
    if kind == "mark4":
        reader = mark4.open(path, "rs", ntrack=64, ref_time=Time("2024-01-01"), sample_rate=rate, verify=False)
    else:
        reader = vdif.open(path, "rs", sample_rate=rate, verify=False)
    with reader:
        begin = time.process_time()
        values = reader.read()
        times.append((time.process_time() - begin) / values.size)
print(median(times) * 1e9)
