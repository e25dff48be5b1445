"""Correlates recordings of 2-bit VDIF, frames of 8032 bytes, on one thread.

Arguments: channels; turns by which the fringe rotates per sample, or 0; samples to use of each; all baselines or only pairs; the
recordings. Prints the CPU time per sample in nanoseconds, without that of reading, and the amplitude.
"""
import sys
from itertools import combinations
from time import process_time

import numpy as np

try:
    from scipy.fft import fft, rfft
except ImportError:
    from numpy.fft import fft, rfft

HIGH = 3.3165
LEVELS = np.array([-HIGH, -1, 1, HIGH], np.float32)
TABLE = LEVELS[(np.arange(256)[:, None] >> np.array([0, 2, 4, 6])) & 3]
CHANNELS, TURNS, COUNT = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
LENGTH = 2 * CHANNELS
STEP = 1 << 20
ROTATION = np.exp(2j * np.pi * TURNS * np.arange(LENGTH)).astype(np.complex64)


def samples(path):
    frames = np.fromfile(path, np.uint8)
    return frames[: frames.size // 8032 * 8032].reshape(-1, 8032)[:, 32:].reshape(-1)[: COUNT // 4]


def spectra(data):
    values = TABLE[data].reshape(-1, LENGTH)
    if not TURNS:
        return rfft(values, axis=1)[:, :CHANNELS]
    starts = np.exp(2j * np.pi * TURNS * LENGTH * np.arange(len(values))).astype(np.complex64)
    return fft(values * ROTATION, axis=1)[:, :CHANNELS] * starts[:, None]


stations = [samples(path) for path in sys.argv[5:]]
count = min(data.size for data in stations) * 4 // STEP * STEP
pairs = list(combinations(range(len(stations)), 2))
if sys.argv[4] == "pairs":
    pairs = [(a, b) for a, b in pairs if a % 2 == 0 and b == a + 1]
begin = process_time()
cross = np.zeros((len(pairs), CHANNELS), complex)
power = np.zeros((len(stations), CHANNELS))
for start in range(0, count // 4, STEP // 4):
    found = [spectra(data[start : start + STEP // 4]) for data in stations]
    for total, (a, b) in zip(cross, pairs):
        total += (found[a] * found[b].conj()).sum(axis=0)
    for total, spectrum in zip(power, found):
        total += (spectrum.real**2 + spectrum.imag**2).sum(axis=0)
print((process_time() - begin) * 1e9 / count, abs(cross[0].sum()) / np.sqrt(power[0].sum() * power[1].sum()))
