/* comm/copy.c - copies that go past the caches (non-temporal stores): for what is larger than the
 * caches they save reading each destination line before it is overwritten. */
#include "comm/comm_internal.h"

#include <string.h>

/* The thread sanitizer does not see such stores. */
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>

enum { LINE = 64 };

static void copy_lines(char *restrict to, const char *restrict from, size_t lines)
{
    for (size_t i = 0; i < lines; i++, to += LINE, from += LINE) {
        const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
        const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
        const __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
        const __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));
        _mm_stream_si128((__m128i *)(void *)to, a);
        _mm_stream_si128((__m128i *)(void *)(to + 16), b);
        _mm_stream_si128((__m128i *)(void *)(to + 32), c);
        _mm_stream_si128((__m128i *)(void *)(to + 48), d);
    }
}

void dti_copy(char *dst, const char *src, size_t bytes, bool stream)
{
    const size_t ahead = (LINE - ((uintptr_t)dst & (LINE - 1))) & (LINE - 1);
    if (!stream || bytes < ahead + LINE) {
        memcpy(dst, src, bytes);
        return;
    }
    memcpy(dst, src, ahead);
    const size_t lines = (bytes - ahead) / LINE, done = ahead + lines * LINE;
    copy_lines(dst + ahead, src + ahead, lines);
    memcpy(dst + done, src + done, bytes - done);
}

void dti_copy_fence(void)
{
    _mm_sfence();
}
#else
void dti_copy(char *dst, const char *src, size_t bytes, bool stream)
{
    (void)stream;
    memcpy(dst, src, bytes);
}

void dti_copy_fence(void)
{
}
#endif
