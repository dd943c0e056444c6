/* What the bodies of the OpenAI interface cost, in CPU time: CSV lines `name,value,unit,ratio,against`. Reading is put against
 * cJSON's parser alone on the same bytes (its time over ours), writing against nothing. Turns alternate; values are medians. */
#include "common/http/openai.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TURNS = 9, PROMPT = 200, ANSWER = 200 };

static uint32_t ids[PROMPT + ANSWER];
static float logprobs[ANSWER];
static k2_buf body, out;
static k2_openai_request request;
static k2_openai_answer answer;
static k2_openai_parsed parsed;
static bool chat;

static void parse_request(void)
{
    k2_openai_request r;
    k2_openai_error e;
    if (!k2_openai_parse_request(body.data, body.len, chat, &r, &e)) abort();
    k2_openai_request_fini(&r);
}

static void write_request(void)
{
    k2_buf_clear(&out);
    k2_openai_write_request(&out, &request, NULL);
}

static void parse_answer(void)
{
    k2_error e;
    if (k2_openai_parse_answer(body.data, body.len, &parsed, &e) != K2_OK) abort();
}

static void write_chunk(void)
{
    k2_buf_clear(&out);
    k2_openai_write_chunk(&out, &answer);
}

static void write_answer(void)
{
    k2_buf_clear(&out);
    k2_openai_write_answer(&out, &answer);
}

static void parse_tree(void)
{
    cJSON_Delete(cJSON_ParseWithLength(body.data, body.len));
}

static double cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double per_call(void (*fn)(void), int each)
{
    const double start = cpu_ns();
    for (int i = 0; i < each; i++) fn();
    return (cpu_ns() - start) / each;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *name, void (*fn)(void), void (*other)(void))
{
    double ns[TURNS], ratio[TURNS];
    const int each = (int)(2e6 / per_call(fn, 100)) + 1;
    for (int t = 0; t < TURNS; t++) {
        ns[t] = per_call(fn, each);
        ratio[t] = other ? per_call(other, each) / ns[t] : 0;
    }
    qsort(ns, TURNS, sizeof *ns, by_value);
    qsort(ratio, TURNS, sizeof *ratio, by_value);
    printf("%s,%.2f,us", name, ns[TURNS / 2] / 1000);
    printf(other ? ",%.3f,cJSON\n" : ",,\n", ratio[TURNS / 2]);
}

static void requests(void)
{
    k2_openai_error e;
    k2_buf_clear(&body);
    k2_buf_puts(&body, "{\"model\":\"k2rl\",\"prompt\":[");
    for (int i = 0; i < PROMPT; i++) k2_buf_printf(&body, i ? ",%u" : "%u", ids[i]);
    k2_buf_puts(
        &body,
        "],\"max_tokens\":200,\"temperature\":1,\"top_p\":1,\"logprobs\":0,\"seed\":7,\"k2\":{\"trajectory\":"
        "\"9223372036854775813\",\"group\":17,"
        "\"position\":0,\"seed\":1,\"train\":true,\"digest\":\"5e5dea00a595f3eb3c6eca3ed1f3a3f4\",\"repetition\":true}}");
    measure("http_request_of_200_ids_read", parse_request, parse_tree);
    if (!k2_openai_parse_request(body.data, body.len, false, &request, &e)) abort();
    measure("http_request_of_200_ids_written", write_request, NULL);
    k2_openai_request_fini(&request);
    k2_buf_clear(&body);
    k2_buf_puts(&body, "{\"model\":\"k2rl\",\"stream\":true,\"messages\":[");
    for (int i = 0; i < 8; i++)
        k2_buf_printf(&body,
                      "%s{\"role\":\"%s\",\"content\":\"A line of text\\nwith \\\"quotes\\\" in it, some "
                      "\xe4\xbd\xa0\xe5\xa5\xbd, and so on and so on.\"}",
                      i ? "," : "", i % 2 ? "assistant" : "user");
    k2_buf_puts(&body, "],\"max_tokens\":200,\"temperature\":0.7}");
    chat = true;
    measure("http_chat_of_8_messages_read", parse_request, parse_tree);
    if (!k2_openai_parse_request(body.data, body.len, true, &request, &e)) abort();
    measure("http_chat_of_8_messages_written", write_request, NULL);
    k2_openai_request_fini(&request);
}

static void answers(const char *of, size_t count, bool chunk)
{
    char name[64];
    static char text[ANSWER + 1];
    memset(text, 'x', ANSWER);
    answer = (k2_openai_answer){.id = "cmpl-0123456789abcdef",
                                .model = "k2rl",
                                .created = 1796077273,
                                .text = text,
                                .text_bytes = count,
                                .ids = ids + PROMPT,
                                .logprobs = logprobs,
                                .count = count,
                                .finish_reason = chunk ? NULL : "length",
                                .has_usage = !chunk,
                                .prompt_tokens = PROMPT,
                                .completion_tokens = count,
                                .has_k2 = true,
                                .version = 12,
                                .digest = {1, 2}};
    snprintf(name, sizeof name, "http_%s_written", of);
    measure(name, chunk ? write_chunk : write_answer, NULL);
    k2_buf_clear(&body);
    k2_buf_append(&body, out.data, out.len);
    snprintf(name, sizeof name, "http_%s_read", of);
    measure(name, parse_answer, parse_tree);
}

int main(void)
{
    for (uint32_t i = 0; i < PROMPT + ANSWER; i++) ids[i] = (uint32_t)k2_rand_below(1, K2_STREAM_TEST, i, 0, 160000);
    for (uint32_t i = 0; i < ANSWER; i++) logprobs[i] = -(float)k2_rand_below(1, K2_STREAM_TEST, i, 1, 1000000) / 123457.0f;
    k2_buf_init(&body, 1 << 20);
    k2_buf_init(&out, 1 << 20);
    k2_openai_parsed_init(&parsed);
    puts("name,value,unit,ratio,against");
    requests();
    answers("chunk_of_1_token", 1, true);
    answers("chunk_of_16_tokens", 16, true);
    answers("answer_of_200_tokens", ANSWER, false);
    k2_openai_parsed_fini(&parsed);
    k2_buf_fini(&body);
    k2_buf_fini(&out);
    return 0;
}
