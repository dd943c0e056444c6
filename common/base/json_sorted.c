/* JSON written anew in one form: k2_json_sorted, and the raw text of a member. One cursor over the text serves both; each
 * object is walked once to find its members and once to write them, so the time is that of the text times its depth. */
#include "common/base/base.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 64u

typedef struct cursor {
    const char *at, *end;
} cursor;

typedef struct member {
    cursor value;
    size_t name_at, name_n; /* in the object's own buffer of names */
    const char *name;
} member;

static void skip_space(cursor *c)
{
    while (c->at < c->end && memchr(" \t\r\n", *c->at, 4)) c->at++;
}

static bool take(cursor *c, char want)
{
    skip_space(c);
    if (c->at == c->end || *c->at != want) return false;
    c->at++;
    return true;
}

/* ---- strings --------------------------------------------------------------------------------------------------------- */

static bool take_hex(cursor *c, uint32_t *out)
{
    *out = 0;
    if (c->end - c->at < 4) return false;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef", *hit = *c->at ? strchr(digits, *c->at | 0x20) : NULL;
        if (!hit || (*c->at > '9' && (*c->at | 0x20) < 'a') || *c->at < '0') return false;
        *out = *out << 4 | (uint32_t)(hit - digits);
        c->at++;
    }
    return true;
}

static void put_utf8(k2_buf *out, uint32_t v)
{
    char s[4];
    size_t n = v < 0x80 ? 1 : v < 0x800 ? 2 : v < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; v >>= 6) s[i] = (char)(0x80 | (v & 0x3f));
    s[0] = (char)(lead[n] | v);
    k2_buf_append(out, s, n);
}

static bool take_escape(cursor *c, k2_buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    uint32_t high, low;
    if (c->at == c->end) return false;
    const char kind = *c->at++;
    if (kind != 'u') {
        const char *hit = memchr(from, kind, sizeof from - 1);
        return hit && k2_buf_append(out, &to[hit - from], 1);
    }
    if (!take_hex(c, &high) || (high >= 0xdc00 && high <= 0xdfff)) return false;
    if (high >= 0xd800 && high <= 0xdbff) {
        if (c->end - c->at < 2 || c->at[0] != '\\' || c->at[1] != 'u') return false;
        c->at += 2;
        if (!take_hex(c, &low) || low < 0xdc00 || low > 0xdfff) return false;
        high = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    }
    put_utf8(out, high);
    return true;
}

/* Appends what the string says. */
static bool take_string(cursor *c, k2_buf *out)
{
    if (!take(c, '"')) return false;
    while (c->at < c->end) {
        const char *begin = c->at;
        while (c->at < c->end && *c->at != '"' && *c->at != '\\' && (unsigned char)*c->at >= 0x20) c->at++;
        k2_buf_append(out, begin, (size_t)(c->at - begin));
        if (c->at == c->end || (unsigned char)*c->at < 0x20) return false;
        if (*c->at++ == '"') return true;
        if (!take_escape(c, out)) return false;
    }
    return false;
}

/* ---- numbers --------------------------------------------------------------------------------------------------------- */

static size_t digits_of(cursor *c)
{
    const char *begin = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') c->at++;
    return (size_t)(c->at - begin);
}

/* One more in the last digit of d.ddde+xx; nines all through are left alone, for more digits follow. */
static void step_up(char *text)
{
    char *last = strchr(text, 'e');
    while (last > text && (last[-1] == '9' || last[-1] == '.' || last[-1] == '-')) last--;
    if (last == text) return;
    last[-1]++;
    for (; *last != 'e'; last++)
        if (*last == '9') *last = '0';
}

/* Do so many digits give the number again? Below a power of two doubles stand twice as close as above it: the nearest digits
 * may then be another double's, and still the next ones above be this one's. */
static bool round_trips(char *text, size_t size, int precision, double v)
{
    snprintf(text, size, "%.*e", precision, v);
    if (strtod(text, NULL) == v) return true;
    step_up(text);
    return strtod(text, NULL) == v;
}

/* The shortest digits that give the number again, as Python writes them: 0.1, 2.0, 1e+16, 1e-05. */
static void put_double(k2_buf *out, double v)
{
    char text[40];
    int precision = 0;
    if (isinf(v)) {
        k2_buf_puts(out, v < 0 ? "-Infinity" : "Infinity");
        return;
    }
    while (!round_trips(text, sizeof text, precision, v)) precision++; /* 17 digits always do */
    const int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        k2_buf_puts(out, text);
        return;
    }
    /* Powers of two of this size are their own digits, so the nearest ones are right. */
    k2_buf_printf(out, "%.*f", K2_MAX(precision - exponent, 1), v);
}

static bool take_number(cursor *c, k2_buf *out)
{
    const char *begin = c->at;
    char text[64];
    bool whole = true;
    if (*c->at == '-') c->at++;
    const char *first = c->at;
    const size_t n = digits_of(c);
    if (n == 0 || (n > 1 && *first == '0')) return false;
    if (c->at < c->end && *c->at == '.') {
        whole = false;
        c->at++;
        if (digits_of(c) == 0) return false;
    }
    if (c->at < c->end && (*c->at | 0x20) == 'e') {
        whole = false;
        c->at++;
        if (c->at < c->end && (*c->at == '+' || *c->at == '-')) c->at++;
        if (digits_of(c) == 0) return false;
    }
    const size_t len = (size_t)(c->at - begin);
    if (!out) return true;
    if (whole) return n == 1 && *first == '0' ? k2_buf_puts(out, "0") : k2_buf_append(out, begin, len);
    char *copy = len < sizeof text ? memcpy(text, begin, len) : k2_strndup(begin, len);
    if (copy == text) text[len] = 0;
    put_double(out, strtod(copy, NULL));
    if (copy != text) k2_free(copy);
    return true;
}

/* ---- values ---------------------------------------------------------------------------------------------------------- */

static bool take_value(cursor *c, k2_buf *out, unsigned depth);

static bool take_word(cursor *c, k2_buf *out)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < K2_COUNT(words); i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(c->end - c->at) < n || memcmp(c->at, words[i], n) != 0) continue;
        c->at += n;
        return !out || k2_buf_puts(out, words[i]);
    }
    return false;
}

static bool take_array(cursor *c, k2_buf *out, unsigned depth)
{
    c->at++;
    if (out) k2_buf_puts(out, "[");
    for (bool first = true; !take(c, ']'); first = false) {
        if (!first && !take(c, ',')) return false;
        if (!first && out) k2_buf_puts(out, ",");
        if (!take_value(c, out, depth)) return false;
    }
    return !out || k2_buf_puts(out, "]");
}

static int by_name(const void *a, const void *b)
{
    const member *x = a, *y = b;
    const int order = memcmp(x->name, y->name, K2_MIN(x->name_n, y->name_n));
    return order ? order : x->name_n < y->name_n ? -1 : x->name_n > y->name_n;
}

typedef struct object {
    member *members;
    size_t count, capacity;
    k2_buf names;
} object;

static void object_fini(object *o)
{
    k2_free(o->members);
    k2_buf_fini(&o->names);
}

/* The members of an object as they stand. Their names point into the buffer once all are there. */
static bool take_members(cursor *c, object *o, unsigned depth)
{
    *o = (object){0};
    k2_buf_init(&o->names, (size_t)(c->end - c->at) + 1);
    c->at++;
    while (!take(c, '}')) {
        if (o->count > 0 && !take(c, ',')) return false;
        if (o->count == o->capacity) {
            o->capacity = K2_MAX(o->capacity * 2, (size_t)8);
            o->members = k2_realloc_array(o->members, o->capacity, sizeof *o->members);
        }
        member *m = &o->members[o->count++];
        m->name_at = o->names.len;
        if (!take_string(c, &o->names)) return false;
        m->name_n = o->names.len - m->name_at;
        if (!take(c, ':')) return false;
        skip_space(c);
        m->value.at = c->at;
        if (!take_value(c, NULL, depth)) return false;
        m->value.end = c->at;
    }
    for (size_t i = 0; i < o->count; i++) o->members[i].name = o->names.data + o->members[i].name_at;
    return true;
}

static bool take_object(cursor *c, k2_buf *out, unsigned depth)
{
    object o;
    bool ok = take_members(c, &o, depth);
    if (ok && out) {
        if (o.count > 1) qsort(o.members, o.count, sizeof *o.members, by_name);
        k2_buf_puts(out, "{");
        for (size_t i = 0; i < o.count && ok; i++) {
            const member *m = &o.members[i];
            cursor value = m->value;
            ok = i == 0 || by_name(m - 1, m) != 0;
            if (i) k2_buf_puts(out, ",");
            k2_buf_json_string(out, m->name, m->name_n);
            k2_buf_puts(out, ":");
            ok = ok && take_value(&value, out, depth);
        }
        k2_buf_puts(out, "}");
    }
    object_fini(&o);
    return ok;
}

static bool take_text(cursor *c, k2_buf *out)
{
    k2_buf said;
    k2_buf_init(&said, (size_t)(c->end - c->at) + 1);
    const bool ok = take_string(c, &said);
    if (ok && out) k2_buf_json_string(out, said.data ? said.data : "", said.len);
    k2_buf_fini(&said);
    return ok;
}

/* Reads one value, and writes it where there is somewhere to write to. */
static bool take_value(cursor *c, k2_buf *out, unsigned depth)
{
    skip_space(c);
    if (c->at == c->end || depth == 0) return false;
    switch (*c->at) {
    case '{': return take_object(c, out, depth - 1);
    case '[': return take_array(c, out, depth - 1);
    case '"': return take_text(c, out);
    case 't':
    case 'f':
    case 'n': return take_word(c, out);
    default: return take_number(c, out);
    }
}

bool k2_json_sorted(const char *s, size_t n, k2_buf *out)
{
    const size_t mark = out->len;
    cursor c = {s, s + n};
    bool ok = k2_utf8_valid(s, n) && take_value(&c, out, DEPTH_MAX);
    skip_space(&c);
    ok = ok && c.at == c.end && !out->overflow;
    if (!ok && out->data) out->data[out->len = mark] = 0;
    return ok;
}

bool k2_json_member(const char *s, size_t n, const char *name, const char **value, size_t *value_n)
{
    object o = {0};
    cursor c = {s, s + n};
    skip_space(&c);
    bool found = false;
    if (c.at < c.end && *c.at == '{' && take_members(&c, &o, DEPTH_MAX - 1)) {
        for (size_t i = 0; i < o.count && !found; i++) {
            const member *m = &o.members[i];
            found = m->name_n == strlen(name) && memcmp(m->name, name, m->name_n) == 0;
            if (!found) continue;
            *value = m->value.at;
            *value_n = (size_t)(m->value.end - m->value.at);
        }
    }
    object_fini(&o);
    return found;
}
