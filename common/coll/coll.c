/* A rank's life in its group, and the rounds on which every operation is built. */
#include "common/coll/coll_int.h"

#include <stdio.h>
#include <string.h>

#define BYTES_MAX_DEFAULT   (8ull << 20)
#define DEADLINE_NS_DEFAULT (60 * K2_NS_PER_S)
#define PARTING_NS_MAX      (K2_NS_PER_S / 2) /* how long a broken group's member stays to tell the others why */

/* ---- breaking ---------------------------------------------------------------------------------------------------- */

/* Leave: later operations fail with this, and so do the peers'. */
static void leave(k2_coll *c, k2_code code, const char *text)
{
    if (c->broken.code != K2_OK) return; /* the first reason is the true one */
    k2_error_set(&c->broken, code, "%s", text);
    if (c->segment == NULL) return;
    k2i_parting *p = (k2i_parting *)(void *)(c->memory + K2I_PARTING_AT);
    p->code = code;
    snprintf(p->text, sizeof p->text, "%s", text);
    k2_xfer_segment_signal(c->segment, K2I_WORD_ROUND, K2I_ROUND_LEFT);
    k2_xfer_segment_signal(c->segment, K2I_WORD_DONE, K2I_ROUND_LEFT);
}

/* "coll: all_gather #12 (4096 bytes) of group 7: ..." , break the group, and give the code. */
static k2_code broke(k2_coll *c, const k2i_op *op, const k2_error *why, k2_error *err)
{
    k2_error e;
    k2_error_set(&e, why->code, "coll: rank %u: %s #%llu (%llu bytes) of group %llu: %s", c->rank,
                 k2_flight_collective_text(op->kind), (unsigned long long)op->seq, (unsigned long long)op->bytes,
                 (unsigned long long)op->group, why->text);
    leave(c, e.code, e.text);
    return k2_error_set(err, e.code, "%s", e.text);
}

/* Why the peer has left, as far as it can still be asked. */
static void parting_read(k2_coll *c, uint32_t peer, k2_error *why)
{
    k2i_parting p;
    uint64_t deadline = k2_now_ns() + PARTING_NS_MAX;
    if (k2_xfer_read(c->peers[peer], K2I_PARTING_AT, sizeof p, &p, NULL, deadline, NULL) != K2_OK || p.code == K2_OK ||
        p.code >= K2_CODE_COUNT) {
        k2_error_set(why, K2_PEER_CLOSED, "rank %u has left", peer);
        return;
    }
    p.text[sizeof p.text - 1] = 0;
    k2_error_set(why, (k2_code)p.code, "rank %u has left: %s", peer, p.text);
}

/* Where a peer that did not come stands instead. */
static void straggler(k2_coll *c, uint32_t peer, uint64_t round, k2_error *why)
{
    k2i_round_head h;
    uint64_t slot = K2I_SLOTS_AT + (round % 2) * (K2I_HEAD_BYTES + c->bytes_max);
    unsigned long long ms = c->deadline_ns / K2_NS_PER_MS;
    uint64_t deadline = k2_now_ns() + PARTING_NS_MAX;
    if (round == 0)
        k2_error_set(why, K2_TIMEOUT, "rank %u did not come within %llu ms; it has not joined yet", peer, ms);
    else if (k2_xfer_read(c->peers[peer], slot, sizeof h, &h, NULL, deadline, NULL) != K2_OK)
        k2_error_set(why, K2_TIMEOUT, "rank %u did not come within %llu ms and does not answer", peer, ms);
    else
        k2_error_set(why, K2_TIMEOUT, "rank %u did not come within %llu ms; the last it began is %s #%llu", peer, ms,
                     k2_flight_collective_text(h.op.kind), (unsigned long long)h.op.seq);
}

/* ---- rounds ------------------------------------------------------------------------------------------------------- */

static uint64_t slot_at(const k2_coll *c)
{
    return K2I_SLOTS_AT + (c->round % 2) * (K2I_HEAD_BYTES + c->bytes_max);
}

k2_code k2i_alone(const k2_coll *c, k2_error *err)
{
    return c->broken.code == K2_OK ? K2_OK : k2_error_set(err, c->broken.code, "%s", c->broken.text);
}

k2_code k2i_op_begin(k2_coll *c, k2i_kind kind, uint64_t bytes, uint64_t shape, k2i_op *op, k2_error *err)
{
    k2_code code = k2i_alone(c, err);
    if (code != K2_OK) return code;
    K2_ASSERT(c->joined || kind == K2_FLIGHT_COLL_JOIN);
    *op = (k2i_op){.group = c->group, .seq = ++c->seq, .kind = kind, .bytes = bytes, .shape = shape};
    c->span = k2_flight_begin(K2_FLIGHT_COLLECTIVE, c->label, op->seq, bytes, k2_flight_coll(kind, c->rank, c->ranks));
    c->round++; /* the first round's slot can be written */
    return K2_OK;
}

k2_code k2i_op_end(k2_coll *c, k2_code code)
{
    k2_flight_end(c->span);
    return code;
}

unsigned char *k2i_round_data(k2_coll *c)
{
    return c->memory + slot_at(c) + K2I_HEAD_BYTES;
}

/* An error of xfer, seen from here. A segment that was withdrawn means that its rank closed the group. */
static k2_code peer_failed(uint32_t peer, k2_error *why)
{
    if (why->code == K2_PEER_REFUSED) return k2_error_set(why, K2_PEER_CLOSED, "rank %u has left", peer);
    return k2_error_prefix(why, "rank %u", peer);
}

static k2_code head_read(k2_coll *c, uint32_t peer, k2i_round_head *h, k2_error *why)
{
    if (c->maps[peer] != NULL) {
        memcpy(h, c->maps[peer] + slot_at(c), sizeof *h);
        return K2_OK;
    }
    k2_code code = k2_xfer_read(c->peers[peer], slot_at(c), sizeof *h, h, NULL, k2_now_ns() + c->deadline_ns, why);
    return code == K2_OK ? K2_OK : peer_failed(peer, why);
}

/* The peer has published the round: is it the same round of the same operation? */
static k2_code head_check(k2_coll *c, const k2i_op *op, uint32_t peer, const k2i_round_head *h, k2_error *why)
{
    if (h->rank != peer || h->ranks != c->ranks)
        return k2_error_set(why, K2_PEER_PROTOCOL, "locator %u leads to rank %u of %u, expected rank %u of %u", peer, h->rank,
                            h->ranks, peer, c->ranks);
    if (h->op.group != op->group)
        return k2_error_set(why, K2_PEER_PROTOCOL, "rank %u is in group %llu", peer, (unsigned long long)h->op.group);
    if (h->op.kind != op->kind || h->op.seq != op->seq || h->op.bytes != op->bytes)
        return k2_error_set(why, K2_PEER_PROTOCOL, "rank %u does %s #%llu (%llu bytes)", peer,
                            k2_flight_collective_text(h->op.kind), (unsigned long long)h->op.seq,
                            (unsigned long long)h->op.bytes);
    if (h->op.shape != op->shape || h->round != c->round)
        return k2_error_set(why, K2_PEER_PROTOCOL, "rank %u does the same with other ranges, lanes, root or staging size",
                            peer);
    return K2_OK;
}

/* The peer has left. Where it left in this round over another operation, that is the reason to tell; else its own words are. */
static void peer_left(k2_coll *c, const k2i_op *op, uint32_t peer, k2_error *why)
{
    k2i_round_head h;
    bool here = head_read(c, peer, &h, why) == K2_OK && h.round == c->round;
    if (!here || head_check(c, op, peer, &h, why) == K2_OK) parting_read(c, peer, why);
}

static k2_code peer_meet(k2_coll *c, const k2i_op *op, uint32_t peer, k2_error *why)
{
    uint64_t seen = 0;
    k2_code code = k2_xfer_remote_wait(c->peers[peer], K2I_WORD_ROUND, c->round, k2_now_ns() + c->deadline_ns, &seen, why);
    if (code == K2_OK && seen != K2I_ROUND_LEFT) {
        k2i_round_head h;
        code = head_read(c, peer, &h, why);
        return code == K2_OK ? head_check(c, op, peer, &h, why) : code;
    }
    if (code == K2_OK) {
        peer_left(c, op, peer, why);
    } else if (code == K2_TIMEOUT) {
        /* A wait that is over at once says where the word stands; if it moves meanwhile, its last operation is named all the
         * same. */
        if (k2_xfer_remote_wait(c->peers[peer], K2I_WORD_ROUND, 0, 0, &seen, NULL) != K2_OK) seen = c->round - 1;
        straggler(c, peer, seen, why);
    } else {
        peer_failed(peer, why);
    }
    return why->code;
}

k2_code k2i_round_meet(k2_coll *c, const k2i_op *op, k2_error *err)
{
    k2i_round_head *h = (k2i_round_head *)(void *)(c->memory + slot_at(c));
    *h = (k2i_round_head){.op = *op, .rank = c->rank, .ranks = c->ranks, .round = c->round};
    k2_xfer_segment_signal(c->segment, K2I_WORD_ROUND, c->round);
    for (uint32_t peer = 0; peer < c->ranks; peer++) {
        k2_error why = {0};
        if (peer == c->rank) continue;
        if (peer_meet(c, op, peer, &why) != K2_OK) return broke(c, op, &why, err);
    }
    return K2_OK;
}

k2_code k2i_round_view(k2_coll *c, const k2i_op *op, uint32_t peer, uint64_t offset, uint64_t bytes, void *to, const void **at,
                       k2_error *err)
{
    uint64_t from = slot_at(c) + K2I_HEAD_BYTES + offset;
    K2_ASSERT(offset + bytes <= c->bytes_max);
    if (c->maps[peer] != NULL) {
        *at = c->maps[peer] + from;
        return K2_OK;
    }
    k2_error why = {0};
    if (k2_xfer_read(c->peers[peer], from, bytes, to, NULL, k2_now_ns() + c->deadline_ns, &why) != K2_OK) {
        peer_failed(peer, &why);
        return broke(c, op, &why, err);
    }
    *at = to;
    return K2_OK;
}

k2_code k2i_round_fetch(k2_coll *c, const k2i_op *op, uint32_t peer, uint64_t offset, uint64_t bytes, void *to, k2_error *err)
{
    const void *at;
    k2_code code = k2i_round_view(c, op, peer, offset, bytes, to, &at, err);
    if (code == K2_OK && at != to) memcpy(to, at, bytes);
    return code;
}

void k2i_round_end(k2_coll *c)
{
    k2_xfer_segment_signal(c->segment, K2I_WORD_DONE, c->round);
}

/* ---- a rank's life ------------------------------------------------------------------------------------------------ */

static k2_code config_check(const k2_coll_config *f, k2_error *err)
{
    if (f->ranks == 0 || f->ranks > K2_COLL_RANKS_MAX || f->rank >= f->ranks)
        return k2_error_set(err, K2_BAD_INPUT, "coll: rank %u of %u, expected 1 to %u ranks, counted from 0", f->rank, f->ranks,
                            K2_COLL_RANKS_MAX);
    if (f->bytes_max != 0 && (f->bytes_max < K2_COLL_BYTES_MIN || f->bytes_max > K2_COLL_BYTES_MAX || f->bytes_max % 64 != 0))
        return k2_error_set(err, K2_BAD_INPUT,
                            "coll: a staging area of %llu bytes, expected a multiple of 64 from %llu to %llu",
                            (unsigned long long)f->bytes_max, K2_COLL_BYTES_MIN, K2_COLL_BYTES_MAX);
    if (f->xfer == NULL && f->ranks > 1) return k2_error_set(err, K2_BAD_INPUT, "coll: %u ranks need an xfer engine", f->ranks);
    return K2_OK;
}

k2_code k2_coll_open(const k2_coll_config *f, k2_coll **out, k2_error *err)
{
    k2_code code = config_check(f, err);
    if (code != K2_OK) return code;
    k2_coll *c = k2_alloc(sizeof *c);
    c->xfer = f->xfer;
    c->rank = f->rank;
    c->ranks = f->ranks;
    c->group = f->group;
    c->bytes_max = f->bytes_max != 0 ? f->bytes_max : BYTES_MAX_DEFAULT;
    c->deadline_ns = f->deadline_ns != 0 ? f->deadline_ns : DEADLINE_NS_DEFAULT;
    if (c->ranks > 1) {
        uint64_t bytes = K2I_SLOTS_AT + 2 * (K2I_HEAD_BYTES + c->bytes_max);
        code = k2_xfer_segment_create(c->xfer, bytes, &c->segment, err);
        if (code != K2_OK) {
            k2_free(c);
            return code;
        }
        c->memory = k2_xfer_segment_memory(c->segment);
    }
    *out = c;
    return K2_OK;
}

const char *k2_coll_locator(const k2_coll *c)
{
    return c->segment != NULL ? k2_xfer_segment_locator(c->segment) : "";
}

/* Open the peers' segments; they were all made before their locators were handed on. */
static k2_code peers_open(k2_coll *c, const char *const *locators, k2_error *err)
{
    for (uint32_t i = 0; i < c->ranks; i++) {
        if (i == c->rank) continue;
        k2_error why;
        k2_code code = k2_xfer_remote_open(c->xfer, locators[i], k2_now_ns() + c->deadline_ns, &c->peers[i], &why);
        if (code == K2_OK && k2_xfer_remote_bytes(c->peers[i]) != k2_xfer_segment_bytes(c->segment))
            code = k2_error_set(&why, K2_PEER_PROTOCOL, "its staging area makes a segment of %llu bytes, ours one of %llu",
                                (unsigned long long)k2_xfer_remote_bytes(c->peers[i]),
                                (unsigned long long)k2_xfer_segment_bytes(c->segment));
        if (code != K2_OK) {
            code = peer_failed(i, &why);
            k2_error_prefix(&why, "coll: rank %u joins group %llu", c->rank, (unsigned long long)c->group);
            leave(c, code, why.text);
            return k2_error_set(err, code, "%s", why.text);
        }
        c->maps[i] = k2_xfer_remote_map(c->peers[i]);
    }
    return K2_OK;
}

/* All ranks have the same locators, and each of them has a nonce in it. 32 bits: people read it. */
static uint64_t label_of(const k2_coll *c, const char *const *locators)
{
    uint64_t hash = c->group;
    for (uint32_t i = 0; i < c->ranks; i++) {
        const char *l = i == c->rank ? k2_coll_locator(c) : locators[i];
        hash = k2_hash64(l, strlen(l), hash);
    }
    return hash & UINT32_MAX;
}

k2_code k2_coll_join(k2_coll *c, const char *const *locators, uint32_t count, k2_error *err)
{
    k2i_op op;
    K2_ASSERT(!c->joined && count == c->ranks);
    if (c->ranks == 1) {
        c->joined = true;
        return K2_OK;
    }
    c->label = label_of(c, locators);
    k2_code code = k2i_op_begin(c, K2_FLIGHT_COLL_JOIN, 0, c->bytes_max, &op, err);
    if (code != K2_OK) return code;
    code = peers_open(c, locators, err);
    if (code == K2_OK) code = k2i_round_meet(c, &op, err);
    if (code == K2_OK) k2i_round_end(c);
    c->joined = code == K2_OK;
    return k2i_op_end(c, code);
}

void k2_coll_abort(k2_coll *c, const char *text)
{
    char line[K2_ERROR_TEXT_MAX];
    snprintf(line, sizeof line, "coll: rank %u gave up: %s", c->rank, text);
    leave(c, K2_CANCELED, line);
}

/* A peer may still be reading the last round from us. One that cannot be reached, or has left itself, reads no more. */
static void linger(k2_coll *c)
{
    bool sound = c->broken.code == K2_OK;
    uint64_t until = k2_now_ns() + (sound ? c->deadline_ns : K2_MIN(c->deadline_ns, PARTING_NS_MAX));
    for (uint32_t i = 0; i < c->ranks; i++) {
        if (c->peers[i] == NULL) continue;
        k2_xfer_remote_wait(c->peers[i], K2I_WORD_DONE, sound ? c->round : K2I_ROUND_LEFT, until, NULL, NULL);
    }
}

void k2_coll_close(k2_coll *c)
{
    if (c == NULL) return;
    if (c->joined || c->broken.code != K2_OK) linger(c);
    char text[64];
    snprintf(text, sizeof text, "coll: rank %u closed the group", c->rank);
    leave(c, K2_PEER_CLOSED, text);
    for (uint32_t i = 0; i < c->ranks; i++) k2_xfer_remote_close(c->peers[i]);
    k2_xfer_segment_destroy(c->segment);
    k2_free(c->scratch);
    k2_free(c);
}

uint32_t k2_coll_rank(const k2_coll *c)
{
    return c->rank;
}

uint32_t k2_coll_ranks(const k2_coll *c)
{
    return c->ranks;
}
