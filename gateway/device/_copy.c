/* Copies one chunk between an engine's paged KV blocks and its slot in the pool, in one call.
 *
 * The caller has checked everything: addresses, strides and block ids are taken as they come. The interpreter lock is
 * released once for the whole chunk: with another thread busy in Python, each release costs up to a switch interval.
 *
 * Stores go past the cache (non-temporal): a chunk is far larger than what the engine would like to keep in it, and a
 * plain store first reads the line it is about to overwrite.
 *
 * Where ``catch_lost_memory`` was called, a copy that touches memory which its owner has taken away (a file made smaller
 * under its mapping) ends as an OSError, and not the process with SIGBUS.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

enum { LINE = 64 };

static void copy_row(char *to, const char *from, size_t size)
{
    size_t head = (size_t)(-(uintptr_t)to) % LINE;
    if (size < head + LINE) {
        memcpy(to, from, size);
        return;
    }
    memcpy(to, from, head);
    to += head, from += head, size -= head;
    for (; size >= LINE; to += LINE, from += LINE, size -= LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)from);
        __m128i b = _mm_loadu_si128((const __m128i *)(from + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(from + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(from + 48));
        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)(to + 16), b);
        _mm_stream_si128((__m128i *)(to + 32), c);
        _mm_stream_si128((__m128i *)(to + 48), d);
    }
    memcpy(to, from, size);
}

/* Non-temporal stores are ordered with nothing: before anyone is told that the chunk is there, they must be. */
static void finish_rows(void) { _mm_sfence(); }

#else

static void copy_row(char *to, const char *from, size_t size) { memcpy(to, from, size); }

static void finish_rows(void) { __sync_synchronize(); }

#endif

typedef struct {
    int64_t address;
    int64_t stride_bytes;
    int64_t row_bytes;
} Region;

/* The arguments of both directions: regions and block ids as arrays of int64, the slot's address, blocks to skip. */
typedef struct {
    Py_buffer regions;
    Py_buffer block_ids;
    unsigned long long slot;
    Py_ssize_t skip;
} Chunk;

static int parse(PyObject *args, Chunk *chunk)
{
    if (!PyArg_ParseTuple(args, "y*y*Kn", &chunk->regions, &chunk->block_ids, &chunk->slot, &chunk->skip))
        return 0;
    if (chunk->regions.len % (Py_ssize_t)sizeof(Region) || chunk->block_ids.len % (Py_ssize_t)sizeof(int64_t) ||
        chunk->skip < 0) {
        PyBuffer_Release(&chunk->regions);
        PyBuffer_Release(&chunk->block_ids);
        PyErr_SetString(PyExc_ValueError, "regions are triples and block ids are singles of int64, skip is at least 0");
        return 0;
    }
    return 1;
}

static void copy_rows(const Chunk *chunk, int to_slot)
{
    const Region *regions = chunk->regions.buf;
    const int64_t *block_ids = chunk->block_ids.buf;
    Py_ssize_t num_regions = chunk->regions.len / (Py_ssize_t)sizeof(Region);
    Py_ssize_t num_blocks = chunk->block_ids.len / (Py_ssize_t)sizeof(int64_t);
    char *slot = (char *)(uintptr_t)chunk->slot;
    for (Py_ssize_t r = 0; r < num_regions; r++) {
        const Region region = regions[r];
        for (Py_ssize_t b = chunk->skip; b < num_blocks; b++) {
            char *block = (char *)(intptr_t)(region.address + block_ids[b] * region.stride_bytes);
            char *place = slot + b * region.row_bytes;
            copy_row(to_slot ? place : block, to_slot ? block : place, (size_t)region.row_bytes);
        }
        slot += num_blocks * region.row_bytes;
    }
    finish_rows();
}

static _Thread_local sigjmp_buf *volatile way_out; /* of the copy that this thread is at */
static struct sigaction default_action;

static void leave_copy(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (way_out && info->si_code == BUS_ADRERR)
        siglongjmp(*way_out, 1);
    sigaction(number, &default_action, NULL); /* not a copy's: it happens again, and does what it did before */
    if (info->si_code <= 0)
        raise(number); /* somebody sent it */
}

/* Copies; returns whether all the memory was there. */
static int try_copy_rows(const Chunk *chunk, int to_slot)
{
    sigjmp_buf here;
    if (sigsetjmp(here, 1)) {
        way_out = NULL;
        finish_rows();
        return 0;
    }
    way_out = &here;
    copy_rows(chunk, to_slot);
    way_out = NULL;
    return 1;
}

static PyObject *copy(PyObject *args, int to_slot)
{
    Chunk chunk;
    if (!parse(args, &chunk))
        return NULL;

    int is_whole;
    Py_BEGIN_ALLOW_THREADS
    is_whole = try_copy_rows(&chunk, to_slot);
    Py_END_ALLOW_THREADS

    PyBuffer_Release(&chunk.regions);
    PyBuffer_Release(&chunk.block_ids);
    if (!is_whole) {
        PyErr_SetString(PyExc_OSError, "memory was taken away while it was copied");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *catch_lost_memory(PyObject *module, PyObject *args)
{
    (void)module, (void)args;
    struct sigaction action = {.sa_sigaction = leave_copy, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    struct sigaction before;
    if (sigaction(SIGBUS, &action, &before) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    if (before.sa_sigaction != leave_copy)
        default_action = before;
    Py_RETURN_NONE;
}

static PyObject *gather(PyObject *module, PyObject *args)
{
    (void)module;
    return copy(args, 1);
}

static PyObject *scatter(PyObject *module, PyObject *args)
{
    (void)module;
    return copy(args, 0);
}

static PyMethodDef methods[] = {
    {"gather", gather, METH_VARARGS, "gather(regions, block_ids, slot_address, skip_blocks): blocks to slot."},
    {"scatter", scatter, METH_VARARGS, "scatter(regions, block_ids, slot_address, skip_blocks): slot to blocks."},
    {"catch_lost_memory", catch_lost_memory, METH_NOARGS, "catch_lost_memory(): SIGBUS in a copy is an OSError of it."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_copy", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__copy(void) { return PyModule_Create(&module); }
