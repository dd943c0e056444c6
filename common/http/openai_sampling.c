/* openai_sampling.c - the parameters that say how tokens are drawn, when an answer ends and what is told of its tokens: read
 * and written. Ranges are those of OpenAI, or of vLLM where OpenAI has no such parameter. */
#include "openai_int.h"

#include <stdio.h>
#include <string.h>

/* ---- how a token is drawn -------------------------------------------------------------------------------------------- */

static bool p_temperature(k2i_reader *x, const cJSON *v)
{
    return x->r->has_temperature = k2i_reader_double(x, v, 0, 100, &x->r->temperature);
}

static bool p_top_p(k2i_reader *x, const cJSON *v)
{
    if (!k2i_reader_double(x, v, 0, 1, &x->r->top_p)) return false;
    if (x->r->top_p == 0) return k2i_reader_bad(x, "top_p", "expected a number above 0 and up to 1, found 0");
    return x->r->has_top_p = true;
}

static bool p_top_k(k2i_reader *x, const cJSON *v)
{
    int64_t n;
    if (!k2i_reader_int(x, v, -1, INT32_MAX, &n)) return false;
    x->r->top_k = n < 0 ? 0 : (int32_t)n;
    return x->r->has_top_k = true;
}

static bool p_min_p(k2i_reader *x, const cJSON *v)
{
    return k2i_reader_double(x, v, 0, 1, &x->r->min_p);
}
static bool p_frequency(k2i_reader *x, const cJSON *v)
{
    return k2i_reader_double(x, v, -2, 2, &x->r->frequency_penalty);
}
static bool p_presence(k2i_reader *x, const cJSON *v)
{
    return k2i_reader_double(x, v, -2, 2, &x->r->presence_penalty);
}
static bool p_repetition(k2i_reader *x, const cJSON *v)
{
    return k2i_reader_double(x, v, 0.01, 100, &x->r->repetition_penalty);
}

static bool p_logit_bias(k2i_reader *x, const cJSON *v)
{
    k2_openai_request *r = x->r;
    if (!cJSON_IsObject(v)) return k2i_reader_expected(x, x->name, "an object from token ids to numbers", v);
    int n = cJSON_GetArraySize(v);
    if (n > (int)K2_OPENAI_BIAS_MAX) return k2i_reader_bad(x, x->name, "more than %u token ids", K2_OPENAI_BIAS_MAX);
    if (n == 0) return true;
    r->bias = k2_alloc_array((size_t)n, sizeof *r->bias);
    for (const cJSON *e = v->child; e; e = e->next) {
        char at[64];
        uint64_t id;
        snprintf(at, sizeof at, "logit_bias.%s", e->string);
        if (!k2_str_u64(e->string, &id) || id > INT32_MAX) return k2i_reader_bad(x, at, "the name is no token id");
        for (size_t i = 0; i < r->bias_count; i++)
            if (r->bias[i].id == (uint32_t)id) return k2i_reader_bad(x, at, "given twice");
        if (!cJSON_IsNumber(e) || !(e->valuedouble >= -100 && e->valuedouble <= 100))
            return k2i_reader_expected(x, at, "a number from -100 to 100", e);
        r->bias[r->bias_count++] = (k2_openai_bias){.id = (uint32_t)id, .add = e->valuedouble};
    }
    return true;
}

static bool p_seed(k2i_reader *x, const cJSON *v)
{
    /* OpenAI's seed is signed; ours are the 64 bits. */
    int64_t n;
    if (k2i_openai_read_int(v, -(int64_t)K2I_JSON_EXACT_MAX, (int64_t)K2I_JSON_EXACT_MAX, &n))
        x->r->seed = (uint64_t)n;
    else if (!k2i_openai_read_u64(v, &x->r->seed))
        return k2i_reader_expected(x, "seed", "an integer, or a decimal string beyond 2^53", v);
    return x->r->has_seed = true;
}

/* ---- when an answer ends --------------------------------------------------------------------------------------------- */

static bool p_stop(k2i_reader *x, const cJSON *v)
{
    k2_openai_request *r = x->r;
    bool one = cJSON_IsString(v);
    if (!one && !cJSON_IsArray(v)) return k2i_reader_expected(x, "stop", "a string or a list of strings", v);
    for (const cJSON *e = one ? v : v->child; e; e = one ? NULL : e->next) {
        if (!cJSON_IsString(e) || !e->valuestring[0]) return k2i_reader_bad(x, "stop", "expected strings of at least one byte");
        if (r->stop_count == K2_OPENAI_STOPS_MAX) return k2i_reader_bad(x, "stop", "more than %u strings", K2_OPENAI_STOPS_MAX);
        r->stops[r->stop_count++] = k2_strdup(e->valuestring);
    }
    return true;
}

static bool p_stop_ids(k2i_reader *x, const cJSON *v)
{
    k2_openai_request *r = x->r;
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : -1;
    if (n < 0 || n > (int)K2_OPENAI_STOPS_MAX)
        return k2i_reader_bad(x, "stop_token_ids", "expected a list of up to %u token ids", K2_OPENAI_STOPS_MAX);
    r->stop_id_count = (size_t)n;
    return k2i_reader_ids(x, v, r->stop_ids, K2_OPENAI_STOPS_MAX);
}

static bool p_include_stop(k2i_reader *x, const cJSON *v)
{
    return k2i_reader_bool(x, v, &x->r->include_stop);
}
static bool p_ignore_eos(k2i_reader *x, const cJSON *v)
{
    return k2i_reader_bool(x, v, &x->r->ignore_eos);
}

static bool p_min_tokens(k2i_reader *x, const cJSON *v)
{
    int64_t n;
    if (!k2i_reader_int(x, v, 0, K2_OPENAI_TOKENS_MAX, &n)) return false;
    x->r->min_tokens = (uint32_t)n;
    return true;
}

/* ---- what is told of its tokens --------------------------------------------------------------------------------------- */

static bool p_logprobs(k2i_reader *x, const cJSON *v)
{
    k2_openai_request *r = x->r;
    if (cJSON_IsBool(v)) {
        r->logprobs = cJSON_IsTrue(v);
        return true;
    }
    int64_t n;
    if (r->chat) return k2i_reader_expected(x, x->name, "true or false", v);
    if (!k2i_reader_int(x, v, 0, K2_OPENAI_TOPS_MAX, &n)) return false;
    r->top_logprobs = (uint32_t)n;
    return r->logprobs = true;
}

static bool p_top_logprobs(k2i_reader *x, const cJSON *v)
{
    int64_t n;
    if (!k2i_reader_int(x, v, 0, K2_OPENAI_TOPS_MAX, &n)) return false;
    x->r->top_logprobs = (uint32_t)n;
    return true;
}

static bool p_prompt_logprobs(k2i_reader *x, const cJSON *v)
{
    int64_t n;
    if (!k2i_reader_int(x, v, 0, K2_OPENAI_TOPS_MAX, &n)) return false;
    x->r->prompt_logprobs = (uint32_t)n;
    return x->r->has_prompt_logprobs = true;
}

static bool p_echo(k2i_reader *x, const cJSON *v)
{
    return k2i_reader_bool(x, v, &x->r->echo);
}
static bool p_tokens_as_ids(k2i_reader *x, const cJSON *v)
{
    return k2i_reader_bool(x, v, &x->r->tokens_as_ids);
}

static bool p_n(k2i_reader *x, const cJSON *v)
{
    int64_t n;
    if (!k2i_reader_int(x, v, 1, K2_OPENAI_CHOICES_MAX, &n)) return false;
    x->r->n = (uint32_t)n;
    return true;
}

/* ---- the table -------------------------------------------------------------------------------------------------------- */

const k2i_sampling_param k2i_sampling_params[] = {
    {"temperature", p_temperature, true, true},
    {"top_p", p_top_p, true, true},
    {"top_k", p_top_k, true, true},
    {"min_p", p_min_p, true, true},
    {"frequency_penalty", p_frequency, true, true},
    {"presence_penalty", p_presence, true, true},
    {"repetition_penalty", p_repetition, true, true},
    {"logit_bias", p_logit_bias, true, true},
    {"seed", p_seed, true, true},
    {"stop", p_stop, true, true},
    {"stop_token_ids", p_stop_ids, true, true},
    {"include_stop_str_in_output", p_include_stop, true, true},
    {"ignore_eos", p_ignore_eos, true, true},
    {"min_tokens", p_min_tokens, true, true},
    {"n", p_n, true, true},
    {"logprobs", p_logprobs, true, true},
    {"top_logprobs", p_top_logprobs, false, true},
    {"prompt_logprobs", p_prompt_logprobs, true, true},
    {"echo", p_echo, true, false},
    {"return_tokens_as_token_ids", p_tokens_as_ids, true, true},
};
const size_t k2i_sampling_param_count = K2_COUNT(k2i_sampling_params);

bool k2i_sampling_check(k2i_reader *x)
{
    const k2_openai_request *r = x->r;
    if (r->has_max_tokens && r->min_tokens > r->max_tokens + r->k2.position)
        return k2i_reader_bad(x, "min_tokens", "found %u, expected at most max_tokens, %u", r->min_tokens, r->max_tokens);
    if (r->has_max_tokens && r->max_tokens == 0 && !r->echo && !r->has_prompt_logprobs)
        return k2i_reader_bad(x, "max_tokens", "expected at least 1, or echo or prompt_logprobs, found 0");
    if (r->chat && r->top_logprobs > 0 && !r->logprobs)
        return k2i_reader_bad(x, "top_logprobs", "expected logprobs true beside it");
    return true;
}

/* ---- writing ---------------------------------------------------------------------------------------------------------- */

static void put_u64(k2_buf *out, const char *name, uint64_t v)
{
    k2_buf_printf(out, ",\"%s\":", name);
    k2_openai_write_u64(out, v);
}

static void put_double(k2_buf *out, const char *name, double v)
{
    k2_buf_printf(out, ",\"%s\":%.17g", name, v);
}

static void put_true(k2_buf *out, const char *name, bool v)
{
    if (v) k2_buf_printf(out, ",\"%s\":true", name);
}

void k2i_sampling_write(k2_buf *out, const k2_openai_request *r, size_t so_far)
{
    if (r->has_temperature) put_double(out, "temperature", r->temperature);
    if (r->has_top_p) put_double(out, "top_p", r->top_p);
    if (r->has_top_k) put_u64(out, "top_k", (uint64_t)r->top_k);
    if (r->min_p > 0) put_double(out, "min_p", r->min_p);
    if (r->frequency_penalty != 0) put_double(out, "frequency_penalty", r->frequency_penalty);
    if (r->presence_penalty != 0) put_double(out, "presence_penalty", r->presence_penalty);
    if (r->repetition_penalty != 1) put_double(out, "repetition_penalty", r->repetition_penalty);
    for (size_t i = 0; i < r->bias_count; i++)
        k2_buf_printf(out, "%s\"%u\":%.17g%s", i ? "," : ",\"logit_bias\":{", r->bias[i].id, r->bias[i].add,
                      i + 1 == r->bias_count ? "}" : "");
    if (r->has_seed) put_u64(out, "seed", r->seed);
    for (size_t i = 0; i < r->stop_count; i++) {
        k2_buf_puts(out, i ? "," : ",\"stop\":[");
        k2_buf_json_string(out, r->stops[i], strlen(r->stops[i]));
        if (i + 1 == r->stop_count) k2_buf_puts(out, "]");
    }
    if (r->stop_id_count) k2_buf_puts(out, ",\"stop_token_ids\":"), k2i_openai_put_ids(out, r->stop_ids, r->stop_id_count);
    put_true(out, "include_stop_str_in_output", r->include_stop);
    put_true(out, "ignore_eos", r->ignore_eos);
    size_t counted = r->k2.present ? 0 : so_far; /* an engine that reads k2.position counts those itself */
    if (r->n > 1) put_u64(out, "n", r->n);
    put_true(out, "echo", r->echo);
    if (r->has_prompt_logprobs) put_u64(out, "prompt_logprobs", r->prompt_logprobs);
    put_true(out, "return_tokens_as_token_ids", r->tokens_as_ids);
    if (r->min_tokens > counted) put_u64(out, "min_tokens", r->min_tokens - counted);
}
