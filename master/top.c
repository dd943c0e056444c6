/* top: the command line of `k2rl top`: a picture of a run, again and again on a terminal, once elsewhere. It only looks. */
#include "master/find_int.h"
#include "master/look_int.h"
#include "master/master.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/loop/loop.h"

#define ANSWER_NS      (2 * K2_NS_PER_S) /* a master that does not answer for so long is said to be busy or stopped */
#define INTERVAL_MAX_S 3600u

static const char help[] =
    "usage: k2rl top [RUN_DIR | --master URL] [--once] [--json] [--interval S]\n"
    "\n"
    "Shows how a run goes: roles with leases, processes and what they are at, queues, rates, and what is waited for. On a\n"
    "terminal it is drawn again every second until Ctrl-C or the run's end; elsewhere it is printed once. Without RUN_DIR it "
    "is\n"
    "the run.dir that the configuration has by default.\n"
    "\n"
    "  --master URL   control address of the master (ipc://..., tcp://...), where it is not that of RUN_DIR\n"
    "  --once         print it once and end, on a terminal too\n"
    "  --json         one JSON object on one line; implies --once\n"
    "  --interval S   seconds between two pictures (default 1)\n"
    "  --help         this text\n";

typedef struct top {
    const char *dir, *url; /* dir NULL with --master */
    bool json, once, live, ended;
    uint64_t interval_s;
    k2m_found run;
    k2_loop *loop;
    k2_net_client *client;
    bool asking, have; /* have: view holds an answer */
    uint64_t answered_ns, asked_ns;
    k2_msg view;
    k2_error err;
} top;

/* ---- the terminal -------------------------------------------------------------------------------------------------------- */

static void put(const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t k = write(STDOUT_FILENO, bytes, n);
        if (k <= 0) return;
        bytes += k;
        n -= (size_t)k;
    }
}

static void screen_begin(void)
{
    static const char words[] = "\033[?1049h\033[?25l"; /* the other screen, no cursor */
    put(words, sizeof words - 1);
}

static void screen_end(void)
{
    static const char words[] = "\033[?25h\033[?1049l";
    put(words, sizeof words - 1);
}

/* Why there is no fresh picture, or nothing. */
static void describe_silence(const top *t, uint64_t now_ns, char out[160])
{
    uint64_t since = t->have ? t->answered_ns : t->asked_ns;
    bool stopped = k2m_process_state(t->run.pid) == 'T';
    out[0] = 0;
    if (now_ns - since < ANSWER_NS + t->interval_s * K2_NS_PER_S && !stopped) return;
    snprintf(out, 160, "the master does not answer (pid %llu), for %.0f s%s; asked again and again",
             (unsigned long long)t->run.pid, (double)(now_ns - since) / 1e9, stopped ? ", stopped by a signal" : "");
}

/* One picture in one write: every line is written over the last one's and cleared behind its end, so nothing flickers. */
static void draw(top *t)
{
    struct winsize w = {.ws_row = 24, .ws_col = 80};
    char silence[160];
    k2_buf text, out;
    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &w);
    if (w.ws_row < 2 || w.ws_col < 10) return;
    k2_buf_init(&text, 1 << 20);
    k2_buf_init(&out, 1 << 20);
    describe_silence(t, k2_loop_now_ns(t->loop), silence);
    if (silence[0]) k2_buf_printf(&text, "%.*s\n", (int)w.ws_col - 1, silence);
    if (t->have) k2m_top_text(&t->view.overview, w.ws_col - 1u, w.ws_row - 1u - (silence[0] != 0), &text);
    k2_buf_puts(&out, "\033[H");
    for (char *line = text.data, *end; line && (end = strchr(line, '\n')); line = end + 1)
        k2_buf_printf(&out, "%.*s\033[K\r\n", (int)(end - line), line);
    k2_buf_puts(&out, "\033[J");
    put(out.data, out.len);
    k2_buf_fini(&text);
    k2_buf_fini(&out);
}

/* ---- asking ----------------------------------------------------------------------------------------------------------------
 */

static void fail(top *t, k2_code code, const char *text)
{
    k2_error_set(&t->err, code, "%s", text);
    k2_loop_stop(t->loop);
}

/* The lock is free again: nobody will answer any more. */
static bool run_over(top *t)
{
    k2m_found now;
    k2_error err;
    if (!t->dir || k2m_find(t->dir, &now, &err) != K2_OK) return false;
    k2_journal_close(now.journal);
    t->run.pid = now.pid;
    return !now.held;
}

static void on_reply(void *arg, k2_code code, const k2_msg *reply)
{
    top *t = arg;
    t->asking = false;
    if (code == K2_OK && reply->type == K2_MSG_REFUSED) {
        fail(t, K2_PEER_REFUSED, reply->refused.text);
    } else if (code == K2_OK && (reply->type != K2_MSG_OVERVIEW || !k2m_top_whole(&reply->overview))) {
        fail(t, K2_PEER_PROTOCOL, "the answer is not an overview");
    } else if (code == K2_OK) {
        k2_msg_free(&t->view);
        k2_msg_copy(&t->view, reply);
        t->have = true;
        t->answered_ns = k2_loop_now_ns(t->loop);
    } else if (run_over(t)) {
        t->ended = true;
        k2_loop_stop(t->loop);
    } else if (!t->live) {
        fail(t, code, "the master does not answer: it is busy or stopped (k2rl why tells more)");
    }
    if (t->live)
        draw(t);
    else
        k2_loop_stop(t->loop);
}

static void on_tick(void *arg)
{
    top *t = arg;
    if (t->live) draw(t);
    if (t->asking) return;
    t->asking = k2_net_request(t->client, &(k2_msg){.type = K2_MSG_TOP}, ANSWER_NS, on_reply, t) == K2_OK;
}

static void on_resize(void *arg, int signum)
{
    (void)signum;
    draw(arg);
}

/* Ctrl-Z: the shell gets its screen back. We stand still inside raise, unless there is no shell to continue us: the kernel
 * knows. */
static void on_suspend(void *arg, int signum)
{
    struct sigaction ours, usual = {.sa_handler = SIG_DFL};
    screen_end();
    sigaction(signum, &usual, &ours);
    raise(signum);
    sigaction(signum, &ours, NULL);
    screen_begin();
    draw(arg);
}

static void on_end(void *arg, int signum)
{
    top *t = arg;
    (void)signum;
    k2_loop_stop(t->loop);
}

static k2_code watch(top *t, const char *url)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    k2_signal *signals[K2_COUNT(ends) + 2] = {NULL};
    t->loop = k2_loop_new();
    t->client = k2_net_dial(t->loop, url, &t->err);
    if (t->client) {
        for (size_t i = 0; i < K2_COUNT(ends); i++) signals[i] = k2_loop_signal(t->loop, ends[i], on_end, t);
        if (t->live) {
            signals[K2_COUNT(ends)] = k2_loop_signal(t->loop, SIGWINCH, on_resize, t);
            signals[K2_COUNT(ends) + 1] = k2_loop_signal(t->loop, SIGTSTP, on_suspend, t);
        }
        t->asked_ns = k2_loop_now_ns(t->loop);
        k2_timer *tick = k2_timer_start(t->loop, 0, t->interval_s * K2_NS_PER_S, on_tick, t);
        if (t->live) screen_begin();
        k2_loop_run(t->loop);
        if (t->live) screen_end();
        k2_timer_stop(tick);
        for (size_t i = 0; i < K2_COUNT(signals); i++) k2_signal_stop(signals[i]);
        k2_net_client_close(t->client);
    }
    k2_loop_free(t->loop);
    return t->err.code;
}

/* ---- once, and which run ---------------------------------------------------------------------------------------------------
 */

static k2_code show(top *t)
{
    if (t->dir) {
        k2_code code = k2m_find(t->dir, &t->run, &t->err);
        if (code != K2_OK) return code;
        k2_journal_close(t->run.journal);
        if (!t->run.held)
            return k2_error_set(&t->err, K2_NOT_FOUND, "%s: no master runs (k2rl why tells where the run stood)", t->dir);
        if (!t->live && k2m_process_state(t->run.pid) == 'T')
            return k2_error_set(&t->err, K2_TIMEOUT, "the master (pid %llu) is stopped by a signal",
                                (unsigned long long)t->run.pid);
    }
    k2_code code = watch(t, t->url ? t->url : t->run.url);
    if (code != K2_OK) return code;
    if (t->ended) printf("the run has ended\n");
    if (t->live || !t->have) return K2_OK;
    k2_buf out;
    k2_buf_init(&out, 1 << 20);
    if (t->json)
        k2m_top_json(&t->view.overview, &out);
    else
        k2m_top_text(&t->view.overview, 0, 0, &out);
    fwrite(out.data, 1, out.len, stdout);
    k2_buf_fini(&out);
    return K2_OK;
}

int k2_top_main(int argc, char **argv)
{
    top t = {.interval_s = 1};
    int operands = 0;
    bool asked = false;
    const k2_option options[] = {{.name = "--master", .text = &t.url},
                                 {.name = "--once", .flag = &t.once},
                                 {.name = "--json", .flag = &t.json},
                                 {.name = "--interval", .u64 = &t.interval_s}};
    k2_code code = k2_args_parse(argv + 1, argc - 1, options, K2_COUNT(options), &operands, &asked, &t.err);
    if (code == K2_OK && asked) {
        fputs(help, stdout);
        return 0;
    }
    if (code == K2_OK && (operands > 1 || (operands == 1 && t.url)))
        code = k2_error_set(&t.err, K2_BAD_INPUT, "one RUN_DIR or --master URL; k2rl top --help tells more");
    if (code == K2_OK && (t.interval_s < 1 || t.interval_s > INTERVAL_MAX_S))
        code = k2_error_set(&t.err, K2_BAD_INPUT, "--interval: found %llu, expected 1 to %u seconds",
                            (unsigned long long)t.interval_s, INTERVAL_MAX_S);
    k2_config standard;
    k2_config_defaults(&standard);
    t.dir = operands == 1 ? argv[1] : t.url ? NULL : standard.run_dir;
    t.live = !t.once && !t.json && isatty(STDOUT_FILENO);
    if (code == K2_OK) code = show(&t);
    if (code != K2_OK) fprintf(stderr, "k2rl top: %s\n", t.err.text);
    k2_msg_free(&t.view);
    return code == K2_NOT_FOUND ? 2 : k2_code_exit(code);
}
