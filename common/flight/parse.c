/* From the bytes of a ring's file, which may be anything, to its events in order of time. */
#include "common/flight/flight_int.h"
#include "common/flight/trace.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define WALL_NS_MAX (1ull << 62) /* the year 2116: sums of two times do not overflow */

typedef struct source {
    const unsigned char *bytes;
    k2i_flight_header h;
    uint64_t slots;
    k2_flight_ring *ring;
} source;

static uint64_t word(const source *s, uint64_t at, uint32_t i)
{
    return k2_load_u64le(s->bytes + at + 8ull * i);
}

static void text(char *out, size_t size, const char *from, size_t n)
{
    size_t len = 0;
    while (len < n && len + 1 < size && from[len] > 0x20 && from[len] < 0x7f) len++;
    memcpy(out, from, len);
    out[len] = 0;
}

/* ---- header ----------------------------------------------------------------------------------------------------------- */

static k2_code header_read(source *s, size_t n, k2_error *err)
{
    if (n < K2I_FLIGHT_SLOTS_AT + sizeof(k2i_flight_slot))
        return k2_error_set(err, K2_BAD_INPUT, "%zu bytes are too few for a ring", n);
    memcpy(&s->h, s->bytes, sizeof s->h);
    const k2i_flight_header *h = &s->h;
    if (h->magic != K2I_FLIGHT_MAGIC) return k2_error_set(err, K2_BAD_INPUT, "is no ring of a flight recorder");
    if (h->version != K2I_FLIGHT_VERSION || h->names != k2i_flight_names_hash())
        return k2_error_set(err, K2_UNSUPPORTED, "was written by another version of k2rl; read it with that one");
    if (h->bytes != n)
        return k2_error_set(err, K2_BAD_INPUT, "has %zu bytes, its header says %llu", n, (unsigned long long)h->bytes);
    if (h->mono_ns >= WALL_NS_MAX || h->wall_ns >= WALL_NS_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "its clocks make no sense");
    size_t role = strnlen(h->role, sizeof h->role);
    if (role == 0 || role == sizeof h->role || strspn(h->role, K2I_FLIGHT_ROLE_LETTERS) != role)
        return k2_error_set(err, K2_BAD_INPUT, "its role is not a word of small letters");
    s->slots = (n - K2I_FLIGHT_SLOTS_AT) / sizeof(k2i_flight_slot);
    return K2_OK;
}

static void ring_fill(source *s)
{
    const k2i_flight_header *h = &s->h;
    k2_flight_ring *r = s->ring;
    text(r->role, sizeof r->role, h->role, sizeof h->role);
    text(r->host, sizeof r->host, h->host, sizeof h->host);
    text(r->boot, sizeof r->boot, h->boot, sizeof h->boot);
    text(r->run_id, sizeof r->run_id, h->run_id, sizeof h->run_id);
    r->index = h->index;
    r->pid = h->pid;
    r->ticks = h->ticks;
    r->incarnation = h->incarnation;
    r->start_ns = r->end_ns = h->wall_ns;
    r->closed = h->closed_ns != 0;
    r->life = r->closed ? K2_FLIGHT_ENDED : K2_FLIGHT_UNKNOWN;
    r->left_out = h->left_out;
}

/* ---- events ----------------------------------------------------------------------------------------------------------- */

/* A time of the process on the line of all; false where it cannot be one of its times. */
static bool time_of(const source *s, uint64_t mono, uint64_t *out)
{
    if (mono < s->h.mono_ns || mono - s->h.mono_ns >= WALL_NS_MAX) return false;
    *out = s->h.wall_ns + (mono - s->h.mono_ns);
    return true;
}

static bool slot_read(const source *s, uint64_t slot, k2_flight_event *e)
{
    static const k2_flight_kind kinds[K2I_FLIGHT_KINDS] = {[K2I_FLIGHT_SPAN] = K2_FLIGHT_IS_SPAN,
                                                           [K2I_FLIGHT_START] = K2_FLIGHT_IS_START,
                                                           [K2I_FLIGHT_FINISH] = K2_FLIGHT_IS_FINISH,
                                                           [K2I_FLIGHT_MARK] = K2_FLIGHT_IS_MARK,
                                                           [K2I_FLIGHT_COUNT] = K2_FLIGHT_IS_COUNT};
    uint64_t w[K2I_FLIGHT_WORDS];
    for (uint32_t i = 0; i < K2I_FLIGHT_WORDS; i++) w[i] = word(s, K2I_FLIGHT_SLOTS_AT + slot * sizeof(k2i_flight_slot), i);
    uint32_t check = (uint32_t)(w[2] >> 32), kind = (uint32_t)(w[2] >> 16) & 0xff, name = (uint32_t)w[2] & 0xffff;
    w[2] &= 0xffffffffu;
    if (w[0] == 0 || (w[0] - 1) % s->slots != slot || k2i_flight_check(w, K2I_FLIGHT_WORDS) != check) return false;
    *e =
        (k2_flight_event){.id = w[3], .number = w[0] - 1, .name = (k2_flight_name)name, .track = (uint32_t)(w[2] >> 24) & 0xff};
    memcpy(e->args, w + 4, sizeof e->args);
    if (kind == 0 || kind >= K2I_FLIGHT_KINDS || name >= K2_FLIGHT_NAME_COUNT || e->track >= K2I_FLIGHT_TRACKS) return false;
    e->kind = kinds[kind];
    if (!time_of(s, w[1], &e->end_ns)) return false;
    e->begin_ns = e->end_ns;
    return kind != K2I_FLIGHT_SPAN || (time_of(s, w[3], &e->begin_ns) && e->begin_ns <= e->end_ns);
}

static bool never_written(const source *s, uint64_t slot)
{
    for (uint32_t i = 0; i < K2I_FLIGHT_WORDS; i++)
        if (word(s, K2I_FLIGHT_SLOTS_AT + slot * sizeof(k2i_flight_slot), i) != 0) return false;
    return true;
}

static void slots_read(source *s)
{
    k2_flight_ring *r = s->ring;
    for (uint64_t i = 0; i < s->slots; i++) {
        k2_flight_event *e = &r->events[r->count];
        if (slot_read(s, i, e)) {
            r->recorded = K2_MAX(r->recorded, e->number + 1);
            r->end_ns = K2_MAX(r->end_ns, e->end_ns);
            r->count++;
        } else if (!never_written(s, i)) {
            r->torn++;
        }
    }
    /* What the header counts, as far as it can be true: the copy of it was taken before that of the slots. */
    if (s->h.next > r->recorded && s->h.next - r->recorded <= s->slots) r->recorded = s->h.next;
    r->lost = r->recorded - K2_MIN(r->recorded, (uint64_t)r->count + r->torn);
}

/* What has begun on a track and not ended. A span whose end was recorded just before the process died stands here too. */
static void track_read(source *s, uint32_t t)
{
    k2_flight_ring *r = s->ring;
    uint64_t at = K2I_FLIGHT_TRACKS_AT + t * sizeof(k2i_flight_track);
    uint32_t depth = k2_load_u32le(s->bytes + at + offsetof(k2i_flight_track, depth));
    text(r->tracks[t], sizeof r->tracks[t], (const char *)s->bytes + at + offsetof(k2i_flight_track, name), 16);
    if (t == 0) memcpy(r->tracks[t], "state", 6);
    for (uint32_t d = 0; d < K2_MIN(depth, K2_FLIGHT_DEPTH_MAX); d++) {
        uint64_t w[6];
        for (uint32_t i = 0; i < 6; i++) w[i] = word(s, at + offsetof(k2i_flight_track, open) + d * sizeof(k2i_flight_open), i);
        uint32_t check = (uint32_t)(w[0] >> 32);
        w[0] &= 0xffffffffu;
        k2_flight_event e = {.name = (k2_flight_name)w[0], .kind = K2_FLIGHT_IS_OPEN, .track = t, .number = UINT64_MAX};
        if (k2i_flight_check(w, 6) != check || w[0] >= K2_FLIGHT_NAME_COUNT || !time_of(s, w[1], &e.begin_ns)) {
            r->torn++;
            return;
        }
        memcpy(e.args, w + 2, sizeof e.args);
        r->end_ns = K2_MAX(r->end_ns, e.begin_ns);
        r->events[r->count++] = e;
    }
}

/* By begin; of two that began together the longer one first, so that what encloses comes before what is enclosed. */
static int by_time(const void *a, const void *b)
{
    const k2_flight_event *x = a, *y = b;
    if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
    if (x->end_ns != y->end_ns) return x->end_ns > y->end_ns ? -1 : 1;
    /* Inner spans end, and so are numbered, first. */
    if (x->kind == K2_FLIGHT_IS_SPAN && y->kind == K2_FLIGHT_IS_SPAN && x->number != y->number)
        return x->number > y->number ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

k2_code k2_flight_ring_parse(const void *bytes, size_t n, k2_flight_ring **out, k2_error *err)
{
    source s = {.bytes = bytes};
    k2_code code = header_read(&s, n, err);
    if (code != K2_OK) return code;
    s.ring = k2_alloc(sizeof *s.ring);
    s.ring->events = k2_alloc_array(s.slots + (uint64_t)K2I_FLIGHT_TRACKS * K2_FLIGHT_DEPTH_MAX, sizeof *s.ring->events);
    ring_fill(&s);
    slots_read(&s);
    for (uint32_t t = 0; t < K2I_FLIGHT_TRACKS; t++) track_read(&s, t);
    for (size_t i = 0; i < s.ring->count; i++)
        if (s.ring->events[i].kind == K2_FLIGHT_IS_OPEN) s.ring->events[i].end_ns = s.ring->end_ns;
    qsort(s.ring->events, s.ring->count, sizeof *s.ring->events, by_time);
    *out = s.ring;
    return K2_OK;
}

void k2_flight_ring_free(k2_flight_ring *ring)
{
    if (ring == NULL) return;
    k2_free(ring->events);
    k2_free(ring);
}

const char *k2_flight_life_text(k2_flight_life life)
{
    static const char *const names[] = {"unknown", "ended", "dead", "alive", "stopped"};
    K2_ASSERT((unsigned)life < K2_COUNT(names));
    return names[life];
}
