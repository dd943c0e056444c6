/* reward_match - see reward_int.h. Characters are compared in ASCII: a locale must not change a reward. */
#include "rollout/reward_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}
static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}
static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ')';
}

static void trim(const char **s, size_t *n)
{
    *n = strlen(*s);
    while (*n > 0 && is_space((*s)[*n - 1])) --*n;
    while (*n > 0 && is_space(**s)) ++*s, --*n;
}

double k2i_reward_exact(const char *text, const char *answer)
{
    size_t a, b;
    trim(&text, &a);
    trim(&answer, &b);
    return a == b && memcmp(text, answer, a) == 0 ? 1.0 : 0.0;
}

/* Digits from *at, with commas where three digits follow each of them and at most three stand before the first. Writes plain
 * digits. */
static void take_integer(const char **at, char *out, size_t *n, size_t max)
{
    const char *p = *at;
    size_t lead = 0;
    while (is_digit(p[lead])) lead++;
    bool grouped = lead <= 3 && p[lead] == ',';
    for (size_t i = 0; i < lead; i++) {
        if (*n < max) out[(*n)++] = p[i];
    }
    p += lead;
    while (grouped && p[0] == ',' && is_digit(p[1]) && is_digit(p[2]) && is_digit(p[3]) && !is_digit(p[4])) {
        for (int i = 1; i <= 3; i++) {
            if (*n < max) out[(*n)++] = p[i];
        }
        p += 4;
    }
    *at = p;
}

/* The number that begins at p (a digit, or '.' and a digit). *end is behind it. */
static double take_number(const char *p, bool negative, const char **end)
{
    char plain[400]; /* a double's largest value has 309 digits; more digits than fit change nothing that matters */
    size_t n = 0;
    if (negative) plain[n++] = '-';
    plain[n++] = '0';
    take_integer(&p, plain, &n, 320);
    if (p[0] == '.' && is_digit(p[1])) {
        plain[n++] = '.';
        for (p++; is_digit(*p); p++) {
            if (n < 380) plain[n++] = *p;
        }
    }
    size_t sign = (p[0] == 'e' || p[0] == 'E') && (p[1] == '-' || p[1] == '+');
    if ((p[0] == 'e' || p[0] == 'E') && is_digit(p[1 + sign])) {
        plain[n++] = 'e';
        if (sign) plain[n++] = p[1];
        for (p += 1 + sign; is_digit(*p); p++) {
            if (n < 396) plain[n++] = *p;
        }
    }
    plain[n] = 0;
    *end = p;
    return strtod(plain, NULL); /* the process never leaves the C locale */
}

bool k2i_last_number(const char *text, double *out)
{
    bool found = false;
    for (const char *p = text; *p;) {
        bool starts = is_digit(*p) || (*p == '.' && is_digit(p[1]) && (p == text || !is_word(p[-1])));
        if (!starts) {
            p++;
            continue;
        }
        bool negative = p > text && p[-1] == '-' && (p - 1 == text || !is_word(p[-2]));
        double v = take_number(p, negative, &p);
        if (!isfinite(v)) continue;
        *out = v;
        found = true;
    }
    return found;
}

bool k2i_reward_numeric(const char *text, const char *answer, double tolerance, double *reward,
                        char detail[K2I_SCORE_DETAIL_MAX])
{
    double want, got;
    detail[0] = 0;
    if (!k2i_last_number(answer, &want)) {
        snprintf(detail, K2I_SCORE_DETAIL_MAX, "the expected answer has no number: \"%.100s\"", answer);
        return false;
    }
    *reward = 0;
    if (!k2i_last_number(text, &got))
        snprintf(detail, K2I_SCORE_DETAIL_MAX, "the text has no number");
    else if (fabs(got - want) <= tolerance * fmax(fabs(got), fabs(want)))
        *reward = 1;
    return true;
}
