/* The whole proxy in one loop: clients, proxy, stub engines, all over real sockets. Engines die, stall, refuse and lie; the
 * client's answer must be the one that an engine without faults gives, to the token and to the bit of the log-probability. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "asker.h"
#include "proxy/io_int.h"
#include "stub.h"

enum { STUBS = 3 };
#define TOOL "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"

static k2_loop *loop;
static k2i_px_io *px;
static asker client;
static k2_log *log_of; /* of the proxy; NULL but where a test reads it */
static stub stubs[STUBS];
static const k2_digest A = {0xaaaa, 0xbbbb};

static void start(const k2i_px_io_config *config)
{
    /* Long deadlines: on a busy machine a sound engine must not be taken for a stalled one. */
    static const k2i_px_io_config usual = {.engines_max = 64,
                                           .queue_max = 100,
                                           .retries = 5,
                                           .health_ms = 20,
                                           .connect_ms = 5000,
                                           .stall_ms = 10000,
                                           .wait_ms = 20000};
    k2_error err;
    uint16_t port;
    memset(stubs, 0, sizeof stubs);
    loop = k2_loop_new();
    px = k2i_px_io_new(loop, log_of);
    assert_int_equal(k2i_px_io_listen(px, "127.0.0.1", 0, &port, &err), K2_OK);
    k2i_px_io_configure(px, config ? config : &usual);
    snprintf(client.base, sizeof client.base, "http://127.0.0.1:%u", port);
    client.loop = loop;
    client.client = k2_http_client_new(loop, NULL);
}

static void engines(int n)
{
    k2i_px_entry e[STUBS];
    for (int i = 0; i < n; i++) {
        if (!stubs[i].loop) stub_start(&stubs[i], loop, 0);
        e[i] = (k2i_px_entry){.id = (uint64_t)i,
                              .url = stubs[i].url,
                              .ready = true,
                              .digest = stubs[i].has_digest ? stubs[i].digest : (k2_digest){0, 0}};
    }
    k2i_px_event ev = {.kind = K2I_PX_ENGINES, .engines = {e, (size_t)n}};
    k2i_px_io_step(px, &ev);
}

static void end(void)
{
    k2i_px_stats s;
    k2i_px_stats_get(px->core, &s);
    k2i_px_check(px->core);
    assert_true(s.outstanding == 0 && s.running == 0 && s.queued == 0 && px->job_count == 0);
    k2_http_client_close(client.client);
    k2i_px_io_close(px);
    for (int i = 0; i < STUBS; i++)
        if (stubs[i].loop) stub_stop(&stubs[i]);
    k2_loop_free(loop);
    k2i_px_io_free(px);
}

static void ask_at(answer *r, const char *path, const char *body)
{
    asker_ask(&client, r, path, body);
}

static void ask(answer *r, const char *body)
{
    ask_at(r, "/v1/completions", body);
}

static void ask_page(answer *r, const char *path)
{
    ask_at(r, path, NULL);
    r->raw = true;
}

static const uint32_t PROMPT[] = {5, 6, 7};

static void stop_loop(void *arg)
{
    (void)arg;
    k2_loop_stop(loop);
}

static void wait_sent(uint32_t tokens, const stub *s)
{
    while (s->tokens < tokens) {
        k2_timer *t = k2_timer_start(loop, K2_NS_PER_MS, 0, stop_loop, NULL);
        k2_loop_run(loop);
        k2_timer_stop(t);
    }
}

/* ---- the cases
 * ------------------------------------------------------------------------------------------------------------------- */

static void plain_and_streaming(void **state)
{
    (void)state;
    answer r;
    start(NULL);
    stubs[0].has_digest = true;
    stubs[0].digest = A;
    engines(1);
    ask(&r, "{\"prompt\":[5,6,7],\"max_tokens\":20,\"logprobs\":1}");
    answer_finish(&r);
    answer_expect_whole(&r, PROMPT, 3, 20);
    assert_true(r.has_logprobs && r.has_usage && !r.sse && r.version == 3);
    answer_drop(&r);
    ask(&r, "{\"prompt\":[5,6,7],\"max_tokens\":20,\"logprobs\":1,\"stream\":true,\"stream_options\":{\"include_usage\":true},"
            "\"return_token_ids\":true}");
    answer_finish(&r);
    answer_expect_whole(&r, PROMPT, 3, 20);
    assert_true(r.has_logprobs && r.has_usage && r.sse && r.chunks > 1 && r.prompt_count == 3);
    answer_drop(&r);
    ask_at(&r, "/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":9,\"stream\":true,\"logprobs\":true}");
    answer_finish(&r);
    uint32_t hi[] = {'h', 'i'};
    answer_expect_whole(&r, hi, 2, 9);
    assert_true(r.first_role && r.has_logprobs);
    answer_drop(&r);
    end();
}

/* Dies after each number of tokens; plain and streaming, ids, text and chat prompts. */
static void dies_in_mid_answer(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body;
        uint32_t prompt[2];
        size_t n;
    } cases[] = {
        {"/v1/completions", "{\"prompt\":[5,6],\"max_tokens\":8,\"logprobs\":1}", {5, 6}, 2},
        {"/v1/completions", "{\"prompt\":\"hi\",\"max_tokens\":8,\"logprobs\":1,\"stream\":true}", {'h', 'i'}, 2},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":8,\"logprobs\":true}",
         {'h', 'i'},
         2},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":8,\"stream\":true,\"stream_options\":"
         "{\"include_usage\":true}}",
         {'h', 'i'},
         2},
    };
    start(NULL);
    engines(2);
    for (size_t c = 0; c < K2_COUNT(cases); c++)
        for (uint32_t after = 1; after <= 8; after++) {
            answer r;
            for (int i = 0; i < 2; i++)
                stubs[i].die_after = after, stubs[i].fail_times = i == 0 ? 2 : 1; /* up to three in a row */
            ask_at(&r, cases[c].path, cases[c].body);
            answer_finish(&r);
            answer_expect_whole(&r, cases[c].prompt, cases[c].n, 8);
            answer_drop(&r);
            stubs[0].fail_times = stubs[1].fail_times = 0;
        }
    k2i_px_stats s;
    k2i_px_stats_get(px->core, &s);
    assert_true(s.retried > 16);
    end();
}

/* A call of a tool in whose arguments engines die: another one goes on in them. How much of the prompt was known is the first
 * one's word. */
static void dies_in_a_call(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":8,\"tools\":[" TOOL "]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":8,\"stream\":true,\"stream_options\":{\"include_"
        "usage\":true},"
        "\"tools\":[" TOOL "]}"};
    start(NULL);
    for (int i = 0; i < 2; i++) {
        stubs[i].has_digest = true;
        stubs[i].digest = A;
        stubs[i].cached = 1;
    }
    engines(2);
    char arguments[9] = "";
    uint32_t ids[16] = {'h', 'i'};
    for (size_t i = 0; i < 8; i++) arguments[i] = stub_char(ids[2 + i] = stub_next(ids, 2 + i));
    for (size_t c = 0; c < K2_COUNT(bodies); c++)
        for (uint32_t after = 0; after <= 8; after++) {
            answer r;
            for (int i = 0; i < 2; i++) stubs[i].die_after = after, stubs[i].fail_times = after ? 2 - (uint32_t)i : 0;
            ask_at(&r, "/v1/chat/completions", bodies[c]);
            answer_finish(&r);
            assert_true(r.code == K2_OK && r.status == 200 && !r.saw_error && r.text.len == 0 && r.has_usage && r.cached == 1);
            assert_string_equal(r.finish, "length");
            assert_int_equal(r.calls.count, 1);
            assert_string_equal(r.calls.list[0].id, "functions.f:0");
            assert_string_equal(r.calls.list[0].name, "f");
            assert_string_equal(r.calls.list[0].arguments.data, arguments);
            answer_drop(&r);
            if (after > 0 && after < 8)
                assert_true(strstr(stubs[0].last_body, "\"calls\":true") || strstr(stubs[1].last_body, "\"calls\":true"));
            stubs[0].fail_times = stubs[1].fail_times = 0;
        }
    end();
}

/* An engine of others dies in a call: only the engine knows how a call goes on. Begun anew as long as the client has seen none
 * of it. */
static void dies_in_a_call_elsewhere(void **state)
{
    (void)state;
    answer r;
    start(NULL);
    engines(2);
    for (int i = 0; i < 2; i++) stubs[i].die_after = 3;
    stubs[0].fail_times = stubs[1].fail_times = 1;
    ask_at(&r, "/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":8,\"tools\":[" TOOL "]}");
    answer_finish(&r);
    assert_true(r.status == 200 && r.calls.count == 1);
    assert_int_equal(r.calls.list[0].arguments.len, 8);
    answer_drop(&r);
    stubs[0].fail_times = stubs[1].fail_times = 2;
    ask_at(&r, "/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":8,\"stream\":true,\"tools\":[" TOOL "]}");
    answer_finish(&r);
    assert_true(r.saw_error && !r.saw_done);
    answer_drop(&r);
    end();
}

/* The stop string that ended it, whatever died before. */
static void why_it_ended(void **state)
{
    (void)state;
    answer r;
    start(NULL);
    engines(2);
    stubs[0].stop_every = stubs[1].stop_every = 5;
    for (int stream = 0; stream < 2; stream++) {
        stubs[0].die_after = stubs[1].die_after = 1;
        stubs[0].fail_times = 1;
        ask(&r, stream ? "{\"prompt\":[5,6,7],\"max_tokens\":200,\"stream\":true}" : "{\"prompt\":[5,6,7],\"max_tokens\":200}");
        answer_finish(&r);
        assert_string_equal(r.finish, "stop");
        assert_string_equal(r.stop, "the end");
        answer_drop(&r);
    }
    end();
}

static void killed_in_mid_answer(void **state)
{
    (void)state;
    answer r[6];
    start(NULL);
    engines(2);
    for (int i = 0; i < 6; i++)
        ask(&r[i], i & 1 ? "{\"prompt\":[5,6,7],\"max_tokens\":60,\"logprobs\":1,\"stream\":true}"
                         : "{\"prompt\":[5,6,7],\"max_tokens\":60,\"logprobs\":1}");
    wait_sent(30, &stubs[0]);
    assert_true(stubs[0].running > 0 && stubs[1].running > 0);
    stub_kill(&stubs[0]);
    for (int i = 0; i < 6; i++) {
        answer_finish(&r[i]);
        answer_expect_whole(&r[i], PROMPT, 3, 60);
        answer_drop(&r[i]);
    }
    assert_true(stubs[1].requests == 6);
    assert_non_null(strstr(stubs[1].last_body, "[5,6,7,")); /* went on from tokens */
    end();
}

static void told_that_it_is_gone(void **state)
{
    (void)state;
    answer r[4];
    start(NULL);
    engines(2);
    for (int i = 0; i < 4; i++) ask(&r[i], "{\"prompt\":[5,6,7],\"max_tokens\":50,\"logprobs\":1}");
    wait_sent(20, &stubs[0]);
    k2i_px_entry e = {.id = 1, .url = stubs[1].url, .ready = true};
    k2i_px_event ev = {.kind = K2I_PX_ENGINES, .engines = {&e, 1}};
    k2i_px_io_step(px, &ev);
    for (int i = 0; i < 4; i++) {
        answer_finish(&r[i]);
        answer_expect_whole(&r[i], PROMPT, 3, 50);
        answer_drop(&r[i]);
    }
    assert_int_equal(stubs[0].aborted, 2);
    end();
}

static void other_faults(void **state)
{
    (void)state;
    answer r;
    start(&(k2i_px_io_config){.engines_max = 64,
                              .queue_max = 100,
                              .retries = 5,
                              .health_ms = 20,
                              .connect_ms = 5000,
                              .stall_ms = 250,
                              .wait_ms = 20000});
    engines(1); /* one engine: what fails is asked again when it is healthy */
    for (int fault = 0; fault < 6; fault++)
        for (int stream = 0; stream < 2; stream++) {
            stub *s = &stubs[0];
            s->stall_after = fault == 0 ? 3 : 0;
            s->error_after = fault == 1 ? 3 : 0;
            s->lose_end = fault == 2;
            s->status = fault == 3 ? 500 : fault == 4 ? 429 : fault == 5 ? 503 : 0;
            s->fail_times = 2;
            ask(&r, stream ? "{\"prompt\":[5,6,7],\"max_tokens\":10,\"logprobs\":1,\"stream\":true}"
                           : "{\"prompt\":[5,6,7],\"max_tokens\":10,\"logprobs\":1}");
            answer_finish(&r);
            answer_expect_whole(&r, PROMPT, 3, 10);
            answer_drop(&r);
            s->fail_times = 0;
        }
    end();
}

static void wrong_weights_go_elsewhere(void **state)
{
    (void)state;
    answer r;
    char body[256], hex[K2_DIGEST_HEX];
    start(NULL);
    for (int i = 0; i < 2; i++) stubs[i].has_digest = true, stubs[i].digest = A;
    engines(2);
    k2i_px_event ev = {.kind = K2I_PX_GATE, .gate = {3, A}};
    k2i_px_io_step(px, &ev);
    stubs[0].digest.lo++; /* it changed its weights, and the proxy does not know yet */
    k2_digest_hex(A, hex);
    snprintf(body, sizeof body,
             "{\"prompt\":[5,6,7],\"max_tokens\":10,\"k2\":{\"digest\":\"%s\",\"train\":true,\"trajectory\":9,\"position\":4}}",
             hex);
    for (int i = 0; i < 4; i++) {
        ask(&r, body);
        answer_finish(&r);
        answer_expect_whole(&r, PROMPT, 3, 10);
        assert_int_equal(r.prompt_count, 3); /* k2 asks for ids */
        answer_drop(&r);
    }
    assert_int_equal(stubs[1].requests, 4);
    /* What an engine that goes on is told: the position is advanced, the rest is as it was. */
    stubs[1].die_after = 3;
    stubs[1].fail_times = 1;
    ask(&r, body);
    answer_finish(&r);
    answer_expect_whole(&r, PROMPT, 3, 10);
    answer_drop(&r);
    assert_non_null(strstr(stubs[1].last_body, "\"position\":7,\"trajectory\":9"));
    assert_non_null(strstr(stubs[1].last_body, "\"max_tokens\":7"));
    end();
}

static void foreign_engines(void **state)
{
    (void)state;
    answer r;
    start(NULL);
    stubs[0].foreign = stubs[1].foreign = true;
    engines(2);
    static const char plain[] = "{\"prompt\":\"hi\",\"max_tokens\":10,\"min_p\":0,\"mirostat\":2}",
                      stream[] = "{\"prompt\":\"hi\",\"max_tokens\":10,\"stream\":true}";
    ask(&r, plain);
    answer_finish(&r);
    assert_true(r.status == 200 && r.text.len == 10 && r.count == 0 && strcmp(r.finish, "length") == 0 &&
                r.completion_tokens == 10);
    assert_non_null(strstr(stubs[0].requests ? stubs[0].last_body : stubs[1].last_body, "\"mirostat\":2")); /* passed on */
    char *text = k2_strndup(r.text.data, r.text.len);
    answer_drop(&r);
    ask(&r, stream);
    answer_finish(&r);
    assert_true(r.status == 200 && r.saw_done && strcmp(r.text.data, text) == 0);
    answer_drop(&r);
    /* Nothing was seen of a plain answer: it is begun anew, and still the same. */
    stubs[0].die_after = stubs[1].die_after = 4;
    stubs[0].fail_times = stubs[1].fail_times = 1;
    ask(&r, plain);
    answer_finish(&r);
    assert_true(r.status == 200 && strcmp(r.text.data, text) == 0);
    answer_drop(&r);
    /* A stream that was seen cannot be made whole: an error, and no [DONE]. */
    stubs[0].fail_times = stubs[1].fail_times = 1;
    ask(&r, stream);
    answer_finish(&r);
    assert_true(r.status == 200 && r.saw_error && !r.saw_done);
    answer_drop(&r);
    stubs[0].fail_times = stubs[1].fail_times = 0;
    stubs[0].whole_only = stubs[1].whole_only = true;
    ask(&r, stream);
    answer_finish(&r);
    assert_true(r.status == 200 && r.saw_done && strcmp(r.text.data, text) == 0);
    answer_drop(&r);
    k2_free(text);
    end();
}

/* What another engine could not go on with is passed on as it came; the stub gives one choice whatever n is. */
static void several_answers_are_passed_on(void **state)
{
    (void)state;
    answer r;
    static const char plain[] = "{\"prompt\":[5,6,7],\"max_tokens\":10,\"n\":2,\"echo\":true,\"logprobs\":1}",
                      stream[] = "{\"prompt\":[5,6,7],\"max_tokens\":10,\"n\":2,\"stream\":true}";
    start(NULL);
    engines(2);
    ask(&r, plain);
    answer_finish(&r);
    assert_true(r.status == 200 && r.count == 10 && strcmp(r.finish, "length") == 0);
    answer_drop(&r);
    const char *body = strstr(stubs[0].last_body, "\"n\":2") ? stubs[0].last_body : stubs[1].last_body;
    assert_true(strstr(body, "\"n\":2") && strstr(body, "\"echo\":true") && !strstr(body, "\"stream\":true"));
    ask(&r, stream);
    answer_finish(&r);
    assert_true(r.status == 200 && r.count == 10 && r.saw_done && !r.saw_error);
    answer_drop(&r);
    stubs[0].die_after = stubs[1].die_after = 4;
    stubs[0].fail_times = stubs[1].fail_times = 1;
    ask(&r, stream); /* it has been seen: an error, and no [DONE] */
    answer_finish(&r);
    assert_true(r.status == 200 && r.saw_error && !r.saw_done);
    answer_drop(&r);
    end();
}

static void engine_without_streams(void **state)
{
    (void)state;
    answer r;
    start(NULL);
    stubs[0].whole_only = true;
    engines(1);
    ask(&r, "{\"prompt\":[5,6,7],\"max_tokens\":10,\"logprobs\":1,\"stream\":true}");
    answer_finish(&r);
    answer_expect_whole(&r, PROMPT, 3, 10);
    answer_drop(&r);
    end();
}

static void refusals(void **state)
{
    (void)state;
    answer r;
    start(&(k2i_px_io_config){.engines_max = 64,
                              .queue_max = 2,
                              .retries = 1,
                              .health_ms = 20,
                              .connect_ms = 5000,
                              .stall_ms = 5000,
                              .wait_ms = 1000});
    ask(&r, "{\"prompt\":1}");
    answer_finish(&r);
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body.data, "\"param\":\"prompt\""));
    answer_drop(&r);
    ask_at(&r, "/nothing", NULL);
    answer_finish(&r);
    assert_int_equal(r.status, 404);
    answer_drop(&r);
    ask_at(&r, "/v1/completions", NULL);
    answer_finish(&r);
    assert_int_equal(r.status, 405);
    answer_drop(&r);
    ask_at(&r, "/health", NULL);
    answer_finish(&r);
    assert_int_equal(r.status, 503);
    answer_drop(&r);
    /* No engine: two wait, the third is one too many, and the waiting ends. */
    answer w[2];
    for (int i = 0; i < 2; i++) ask(&w[i], "{\"prompt\":\"x\"}");
    while (px->job_count < 2) {
        k2_timer *t = k2_timer_start(loop, 0, 0, stop_loop, NULL);
        k2_loop_run(loop);
        k2_timer_stop(t);
    }
    ask(&r, "{\"prompt\":\"x\"}");
    answer_finish(&r);
    assert_int_equal(r.status, 429);
    answer_drop(&r);
    for (int i = 0; i < 2; i++) {
        answer_finish(&w[i]);
        assert_int_equal(w[i].status, 503);
        assert_non_null(strstr(w[i].body.data, "no engine is healthy"));
        answer_drop(&w[i]);
    }
    /* The engine's own 4xx goes to the client. */
    stubs[0].status = 422;
    stubs[0].fail_times = 1;
    engines(1);
    ask(&r, "{\"prompt\":\"x\",\"stream\":true}");
    answer_finish(&r);
    assert_int_equal(r.status, 422);
    assert_non_null(strstr(r.body.data, "told to refuse"));
    answer_drop(&r);
    /* Out of retries. */
    stubs[0].status = 500;
    stubs[0].fail_times = 10;
    ask(&r, "{\"prompt\":\"x\"}");
    answer_finish(&r);
    assert_int_equal(r.status, 502);
    assert_non_null(strstr(r.body.data, "every engine that was tried failed; the last one: the engine answered 500: told to"));
    answer_drop(&r);
    end();
}

static void client_that_leaves_is_canceled_at_the_engine(void **state)
{
    (void)state;
    answer r;
    for (int stream = 0; stream < 2; stream++) {
        start(NULL);
        engines(1);
        ask(&r,
            stream ? "{\"prompt\":[5,6,7],\"max_tokens\":4000,\"stream\":true}" : "{\"prompt\":[5,6,7],\"max_tokens\":4000}");
        wait_sent(5, &stubs[0]);
        k2_http_cancel(r.call);
        while (stubs[0].running > 0) {
            k2_timer *t = k2_timer_start(loop, K2_NS_PER_MS, 0, stop_loop, NULL);
            k2_loop_run(loop);
            k2_timer_stop(t);
        }
        assert_int_equal(stubs[0].aborted, 1);
        assert_true(stubs[0].tokens < 4000);
        answer_drop(&r);
        end();
    }
}

static void other_paths(void **state)
{
    (void)state;
    answer r;
    start(NULL);
    engines(2);
    ask_at(&r, "/k2/score", NULL);
    answer_finish(&r);
    assert_int_equal(r.status, 405);
    answer_drop(&r);
    stubs[0].fail_times = stubs[1].fail_times = 1;
    ask_at(&r, "/k2/score", "{\"items\":[],\"choices\":[]}");
    r.raw = true;
    answer_finish(&r);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body.data, "{\"items\":[],\"choices\":[]}");
    assert_int_equal(stubs[0].scores + stubs[1].scores, 3);
    answer_drop(&r);
    static const struct {
        const char *path, *needle;
    } pages[] = {{"/v1/models", "stub-model"},
                 {"/health", "\"ready\":2"},
                 {"/k2/engines", "\"state\":\"ready\""},
                 {"/metrics", "k2_proxy_retried_total 2"}};
    for (size_t i = 0; i < K2_COUNT(pages); i++) {
        ask_page(&r, pages[i].path);
        answer_finish(&r);
        assert_int_equal(r.status, 200);
        if (!strstr(r.body.data, pages[i].needle)) fail_msg("%s: %s", pages[i].path, r.body.data);
        answer_drop(&r);
    }
    end();
}

static bool log_has(const char *needle)
{
    k2_buf b;
    k2_buf_init(&b, 1 << 20);
    k2_log_tail(log_of, &b);
    bool has = b.data && strstr(b.data, needle);
    k2_buf_fini(&b);
    return has;
}

/* /k2/requests tells which engine has which trajectory and how long it has been quiet; deadlines that pass are in the log. */
static void who_waits_for_whom(void **state)
{
    (void)state;
    answer a, b, r;
    k2_error err;
    log_of = k2_log_open("/dev/null", "proxy", 0, K2_LOG_INFO, &err);
    assert_non_null(log_of);
    start(&(k2i_px_io_config){.engines_max = 64,
                              .queue_max = 100,
                              .retries = 0,
                              .health_ms = 20,
                              .connect_ms = 5000,
                              .stall_ms = 1500,
                              .wait_ms = 800});
    engines(1);
    stubs[0].stall_after = 3;
    stubs[0].fail_times = 1;
    ask(&a, "{\"prompt\":[5,6,7],\"max_tokens\":10,\"k2\":{\"trajectory\":3077,\"group\":3}}");
    wait_sent(3, &stubs[0]);
    ask(&b, "{\"prompt\":[5],\"max_tokens\":10,\"k2\":{\"trajectory\":4096,\"digest\":\"000000000000aaaa000000000000bbbb\"}}");
    while (px->job_count < 2) {
        k2_timer *t = k2_timer_start(loop, K2_NS_PER_MS, 0, stop_loop, NULL);
        k2_loop_run(loop);
        k2_timer_stop(t);
    }
    ask_page(&r, "/k2/requests");
    answer_finish(&r);
    assert_int_equal(r.status, 200);
    static const char *const needles[] = {"\"running\":1,\"queued\":1",
                                          "\"state\":\"running\",\"trajectory\":3077,\"group\":3,\"engine\":0",
                                          "\"state\":\"queued\",\"trajectory\":4096,\"group\":null,\"engine\":null",
                                          "\"waits\":\"no engine holds the weights that the request needs\""};
    for (size_t i = 0; i < K2_COUNT(needles); i++)
        if (!strstr(r.body.data, needles[i])) fail_msg("%s is not in %s", needles[i], r.body.data);
    answer_drop(&r);
    answer_finish(&b);
    assert_int_equal(b.status, 503);
    assert_true(log_has("wait: deadline passed: no engine holds the weights") && log_has("of trajectory 4096"));
    answer_finish(&a);
    assert_int_equal(a.status, 502);
    assert_true(log_has("wait: deadline passed: completion request of trajectory 3077"));
    answer_drop(&a);
    answer_drop(&b);
    end();
    k2_log_close(log_of);
    log_of = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain_and_streaming),
                                       cmocka_unit_test(dies_in_a_call),
                                       cmocka_unit_test(dies_in_a_call_elsewhere),
                                       cmocka_unit_test(why_it_ended),
                                       cmocka_unit_test(dies_in_mid_answer),
                                       cmocka_unit_test(killed_in_mid_answer),
                                       cmocka_unit_test(told_that_it_is_gone),
                                       cmocka_unit_test(other_faults),
                                       cmocka_unit_test(wrong_weights_go_elsewhere),
                                       cmocka_unit_test(foreign_engines),
                                       cmocka_unit_test(several_answers_are_passed_on),
                                       cmocka_unit_test(engine_without_streams),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(who_waits_for_whom),
                                       cmocka_unit_test(client_that_leaves_is_canceled_at_the_engine),
                                       cmocka_unit_test(other_paths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
