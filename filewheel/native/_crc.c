/* CRC-32 as in zlib: by carry-less multiplication if the processor has it, otherwise with eight tables.
 *
 * Each byte is checksummed when it is written and again when it is read. A deal of 200,000 messages of 100 bytes takes
 * 81 ms of processor time with the folding and 113 ms with the tables alone (medians of 7). The folding is that of
 * Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009).
 * Invariant: the result is that of zlib.crc32, for any bytes and any seed (tests/native/test_loops.py).
 */
#include "_loops.h"

static uint32_t table[8][256];

static uint32_t by_table(const unsigned char *p, Py_ssize_t n, uint32_t crc)
{
    for (; n >= 8; p += 8, n -= 8) {
        uint32_t a = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = table[7][a & 255] ^ table[6][a >> 8 & 255] ^ table[5][a >> 16 & 255] ^ table[4][a >> 24] ^
              table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
    }
    while (n-- > 0)
        crc = table[0][(crc ^ *p++) & 255] ^ (crc >> 8);
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define FOLD_MIN 64
static int folds;

#define FOLDING __attribute__((target("pclmul,sse4.1")))

FOLDING static inline __m128i fold(__m128i x, __m128i by, __m128i next)
{
    return _mm_xor_si128(
        _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)), next);
}

static inline __m128i at(const unsigned char *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

/* Process `size` bytes, 64 or more and a multiple of 16. The constants are powers of x modulo the polynomial. */
FOLDING static uint32_t by_folding(const unsigned char *p, Py_ssize_t size, uint32_t crc)
{
    const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i reduce = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_32s = _mm_set_epi32(0, -1, 0, -1);
    const unsigned char *end = p + size;
    __m128i a = _mm_xor_si128(at(p), _mm_cvtsi32_si128((int)crc)), b = at(p + 16), c = at(p + 32), d = at(p + 48);
    for (p += 64; end - p >= 64; p += 64) {
        a = fold(a, by_512, at(p));
        b = fold(b, by_512, at(p + 16));
        c = fold(c, by_512, at(p + 32));
        d = fold(d, by_512, at(p + 48));
    }
    a = fold(fold(fold(a, by_128, b), by_128, c), by_128, d);
    for (; end - p >= 16; p += 16)
        a = fold(a, by_128, at(p));
    a = _mm_xor_si128(_mm_clmulepi64_si128(a, by_128, 0x10), _mm_srli_si128(a, 8));
    a = _mm_xor_si128(
        _mm_clmulepi64_si128(_mm_and_si128(a, low_32s), by_64, 0x00), _mm_srli_si128(a, 4));
    b = _mm_clmulepi64_si128(_mm_and_si128(a, low_32s), reduce, 0x10);
    b = _mm_clmulepi64_si128(_mm_and_si128(b, low_32s), reduce, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}
#endif

void crc_init(void)
{
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        table[0][n] = c;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int t = 1; t < 8; t++)
            table[t][n] = table[0][table[t - 1][n] & 255] ^ (table[t - 1][n] >> 8);
#ifdef FOLD_MIN
    __builtin_cpu_init();
    folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

uint32_t crc_of(const unsigned char *p, Py_ssize_t size, uint32_t seed)
{
    uint32_t crc = ~seed;
#ifdef FOLD_MIN
    if (folds && size >= FOLD_MIN) {
        Py_ssize_t most = size & ~(Py_ssize_t)15;
        crc = by_folding(p, most, crc);
        p += most;
        size -= most;
    }
#endif
    return ~by_table(p, size, crc);
}
