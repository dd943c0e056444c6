/* Rings of flight recorders. A ring is mostly empty and full of checks, so an input is what makes one:
 *
 *      0  the header, as far as it matters: its magic, version, names and size are made right
 *    384  pieces of 72 bytes: where it goes (u16), whether its check is made right (u8), 5 bytes unused, 64 bytes of slot or
 * track
 *
 * What is taken must give JSON, whatever the numbers in it are. That a ring cut anywhere is refused, between guard pages, is in
 * tests/unit/flight.
 */
#include <string.h>

#include <cjson/cJSON.h>

#include "common/flight/flight_int.h"
#include "common/flight/trace.h"
#include "tests/fuzz/harness/parser.h"

#define HEADER_BYTES 384u
#define PIECE_BYTES  72u
#define SLOTS        16u
#define PLACES       (SLOTS + K2I_FLIGHT_TRACKS * 8u) /* a track is 8 times 64 bytes */
#define RING_BYTES   (K2I_FLIGHT_SLOTS_AT + SLOTS * sizeof(k2i_flight_slot))

static void place(unsigned char *ring, const uint8_t *piece)
{
    uint64_t at = (piece[0] | (uint64_t)piece[1] << 8) % PLACES, w[8];
    memcpy(w, piece + 8, sizeof w);
    bool slot = at < SLOTS;
    if (slot && piece[2] & 1) {
        w[0] = at + 1 + (w[0] % 4) * SLOTS; /* a number that belongs there */
        w[2] &= 0xffffffffu;
        w[2] |= (uint64_t)k2i_flight_check(w, 8) << 32;
    }
    if (!slot && piece[2] & 1 && (at - SLOTS) % 8 == 1) { /* the first of what is open on a track */
        w[0] &= 0xffffffffu;
        w[0] |= (uint64_t)k2i_flight_check(w, 6) << 32;
    }
    memcpy(ring + (slot ? K2I_FLIGHT_SLOTS_AT + at * 64 : K2I_FLIGHT_TRACKS_AT + (at - SLOTS) * 64), w, sizeof w);
}

static bool append(void *arg, const void *bytes, size_t n)
{
    return k2_buf_append(arg, bytes, n);
}

static void must_be_json(const k2_buf *text)
{
    cJSON *root = cJSON_Parse(text->data);
    K2_ASSERT(root);
    cJSON_Delete(root);
}

static void check(const k2_flight_ring *r)
{
    for (size_t i = 0; i < r->count; i++) {
        const k2_flight_event *e = &r->events[i];
        K2_ASSERT(e->begin_ns <= e->end_ns && e->end_ns <= r->end_ns && e->begin_ns >= r->start_ns);
        K2_ASSERT(i == 0 || r->events[i - 1].begin_ns <= e->begin_ns);
        K2_ASSERT(e->name < K2_FLIGHT_NAME_COUNT && e->track <= K2_FLIGHT_THREADS_MAX);
    }
}

static void use(k2_flight_ring *r)
{
    k2_flight_trace *t = k2_flight_trace_of(&r, 1);
    k2_flight_collectives c;
    k2_buf out;
    k2_buf_init(&out, 1 << 24);
    k2_flight_collectives_find(t, &c);
    K2_ASSERT(k2_flight_chrome_write(t, append, &out));
    must_be_json(&out);
    k2_buf_clear(&out);
    k2_flight_summary_json(t, &c, &out);
    must_be_json(&out);
    k2_buf_clear(&out);
    k2_flight_summary_text(t, &c, &out);
    K2_ASSERT(k2_utf8_valid(out.data, out.len));
    k2_buf_fini(&out);
    k2_flight_collectives_fini(&c);
    k2_flight_trace_free(t);
}

static bool ring(const uint8_t *bytes, size_t n)
{
    k2i_flight_header h = {0};
    k2_flight_ring *r;
    k2_error err;
    memcpy(&h, bytes, K2_MIN(n, (size_t)HEADER_BYTES));
    h.magic = K2I_FLIGHT_MAGIC;
    h.version = K2I_FLIGHT_VERSION;
    h.names = k2i_flight_names_hash();
    h.bytes = RING_BYTES;
    unsigned char *made = k2_alloc(RING_BYTES);
    memcpy(made, &h, sizeof h);
    for (size_t at = HEADER_BYTES; at + PIECE_BYTES <= n; at += PIECE_BYTES) place(made, bytes + at);
    k2_code code = k2_flight_ring_parse(made, RING_BYTES, &r, &err);
    K2_ASSERT(code == K2_OK || (err.code == code && err.text[0]));
    k2_free(made);
    if (code != K2_OK) return false;
    bool any = r->count > 0;
    check(r);
    use(r);
    return any;
}

const k2_parser k2_parsers[] = {{.name = "ring", .take = ring}};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
