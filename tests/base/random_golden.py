"""Prints the numbers that tests/base/test_random.c expects, from the published definitions
and Python's own inverse normal distribution (statistics.NormalDist: AS 241
with the C library's logarithm)."""
from statistics import NormalDist
import struct

M32, M64 = 2**32 - 1, 2**64 - 1


def philox(key, c):
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = ((p1 >> 32) ^ c[1] ^ k0, p1 & M32, (p0 >> 32) ^ c[3] ^ k1, p0 & M32)
        k0, k1 = (k0 + 0x9E3779B9) & M32, (k1 + 0xBB67AE85) & M32
    return c


def mix(x):  # the finaliser of splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & M64
    return x ^ (x >> 31)


def fold(key, a):
    return mix((mix((key + 0x9E3779B97F4A7C15) & M64) + a) & M64)


def named(seed, name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & M64
    return fold(fold(seed, h), len(name))


def word(key, index):
    block = index // 4
    return philox((key & M32, key >> 32), (block & M32, block >> 32, 0, 0))[index % 4]


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def normal(key, index):
    return NormalDist().inv_cdf((word(key, index) + 0.5) / 2**32)


key = named(1234, "model.embed_tokens.weight")
print(f"key {key & M32:#010x} {key >> 32:#010x}")
n = 65536
z = [normal(key, i) for i in range(n)]
tails = [i for i in range(n) if abs(z[i]) > 3.9]
for i in [*range(6), 1000003, 2**34 + 1, 2**62 + 7, *tails]:
    print(f"    {{{i}u, {bits((word(key, i) >> 8) / 2**24):#010x}, {bits(normal(key, i)):#010x}}},")
h = 0xCBF29CE484222325
for x in z:
    h = (h ^ bits(x)) * 0x100000001B3 & M64
print(f"hash {h:#x}")
