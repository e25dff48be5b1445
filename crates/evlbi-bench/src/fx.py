"""Correlates two recordings of 2-bit VDIF, frames of 8032 bytes, into 1024 channels; prints the amplitude."""
import sys

import numpy as np

try:
    from scipy.fft import rfft
except ImportError:
    from numpy.fft import rfft

HIGH = 3.3165
LEVELS = np.array([-HIGH, -1, 1, HIGH], np.float32)
TABLE = LEVELS[(np.arange(256)[:, None] >> np.array([0, 2, 4, 6])) & 3]
LENGTH, BLOCKS = 2048, 2048


def samples(path):
    frames = np.fromfile(path, np.uint8)
    return frames[: frames.size // 8032 * 8032].reshape(-1, 8032)[:, 32:].reshape(-1)


a, b = (samples(path) for path in sys.argv[1:])
step = LENGTH * BLOCKS // 4
cross, power = np.zeros(LENGTH // 2 + 1, complex), np.zeros((2, LENGTH // 2 + 1))
for start in range(0, min(a.size, b.size), step):
    spectra = []
    for data in (a, b):
        values = TABLE[data[start : start + step]].reshape(-1)
        whole = values.size // LENGTH * LENGTH
        spectra.append(rfft(values[:whole].reshape(-1, LENGTH), axis=1))
    cross += (spectra[0] * spectra[1].conj()).sum(axis=0)
    power += [(np.abs(spectrum) ** 2).sum(axis=0) for spectrum in spectra]
print(abs(cross.sum()) / np.sqrt(power[0].sum() * power[1].sum()))
