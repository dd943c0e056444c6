/* `k2rl ckpt`: what each command prints, and how it ends, on whole and on damaged directories. */
#include "common/ckpt/ckpt.h"
#include "common/model/model.h"
#include "common/weights/weights.h"
#include "tests/support/tiny_dims.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[32], said[65536];

/* dir/a: a model in three shards of bf16. */
static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/k2_ckpt_XXXXXX");
    if (!mkdtemp(dir)) return -1;
    const k2_dims dims = tiny_dims();
    k2_model *m = k2_model_new(&dims, K2_COMPUTE_F32, 1, NULL);
    const k2_model_layout *l = k2_model_layout_of(m);
    k2_weights_slot *slots = k2_alloc_array(l->params_count, sizeof *slots);
    k2_model_init(m, 1, 0.02);
    for (size_t i = 0; i < l->params_count; i++)
        slots[i] = (k2_weights_slot){
            .name = l->params[i].name, .shape = l->params[i].shape, .data = k2_model_params(m) + l->params[i].offset};
    char *path = k2_asprintf("%s/a", dir);
    k2_code code = k2_weights_dir_save(path, &dims, &(k2_weights_format){K2_DTYPE_BF16, 32768}, slots, l->params_count, NULL);
    k2_free(path);
    k2_free(slots);
    k2_model_free(m);
    return code == K2_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return k2_dir_remove(dir, NULL) == K2_OK ? 0 : -1;
}

/* One command line, its words parted by blanks, with dir as working directory. Both outputs are in `said`. */
static int run(const char *line)
{
    char *words = k2_strdup(line), *argv[8] = {0}, *path = k2_asprintf("%s/output", dir), *data = NULL;
    int argc = 0;
    size_t n = 0;
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    fflush(stdout);
    fflush(stderr);
    int here = open(".", O_RDONLY | O_DIRECTORY), keep_out = dup(1), keep_err = dup(2);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0 && dup2(fd, 1) >= 0 && dup2(fd, 2) >= 0 && chdir(dir) == 0);
    const int status = k2_ckpt_main(argc, argv);
    fflush(stdout);
    fflush(stderr);
    assert_true(dup2(keep_out, 1) >= 0 && dup2(keep_err, 2) >= 0 && fchdir(here) == 0);
    close(fd);
    close(here);
    close(keep_out);
    close(keep_err);
    assert_int_equal(k2_file_read(path, sizeof said - 1, &data, &n, NULL), K2_OK);
    memcpy(said, data, n + 1);
    k2_free(data);
    k2_free(path);
    k2_free(words);
    return status;
}

static void assert_run(const char *line, int status, const char *text)
{
    const int found = run(line);
    if (found != status || !strstr(said, text)) fail_msg("%s: %d, said: %s", line, found, said);
}

static void usage(void **state)
{
    (void)state;
    assert_run("ckpt", 2, "a command is missing: show, verify or convert");
    assert_run("ckpt shov a", 2, "unknown command \"shov\"");
    assert_run("ckpt --help", 0, "usage: k2rl ckpt COMMAND");
    assert_run("ckpt convert --help", 0, "usage: k2rl ckpt convert FROM TO");
    assert_run("ckpt show", 2, "0 operands, expected one DIR");
    assert_run("ckpt verify a b", 2, "2 operands, expected one DIR");
    assert_run("ckpt verify a --jsn", 2, "--jsn");
    assert_run("ckpt convert a", 2, "1 operands, expected FROM and TO");
    assert_run("ckpt convert a b --dtype int4", 2, "--dtype: \"int4\", expected f32, bf16, f16 or fp8");
    assert_run("ckpt convert a b --shard-bytes -1", 2, "--shard-bytes");
    assert_run("ckpt show nowhere", 2, "config.json: cannot open");
}

static void show(void **state)
{
    (void)state;
    assert_run("ckpt show a", 0, "layers 2 (1 of experts)");
    assert_non_null(strstr(said, "model-00001-of-00003.safetensors: "));
    assert_non_null(strstr(said, "BF16     264 x 32             model.embed_tokens.weight"));
    assert_run("ckpt show a --json", 0, "\"files\":[{\"name\":\"model-00001-of-00003.safetensors\",\"tensors\":");
    assert_non_null(
        strstr(said, "{\"name\":\"model.embed_tokens.weight\",\"dtype\":\"BF16\",\"shape\":[264,32],\"bytes\":16896,"));
    assert_null(strchr(said, '\n')[1] ? said : NULL); /* one line */
}

/* What a conversion to b left that was killed; k2_free the path. */
static char *remains(void)
{
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    assert_true(pid > 0 && waitpid(pid, NULL, 0) == pid);
    char *left = k2_asprintf("%s/b.%d.tmp", dir, (int)pid), *file = k2_asprintf("%s/model.safetensors", left);
    assert_int_equal(k2_dir_make(left, NULL), K2_OK);
    assert_int_equal(k2_file_write_atomic(file, "half", 4, NULL), K2_OK);
    k2_free(file);
    return left;
}

static void verify_and_convert(void **state)
{
    (void)state;
    char *left = remains();
    assert_run("ckpt verify a", 0, "a: ok, ");
    char *digest = k2_strdup(strstr(said, "digest "));
    assert_run("ckpt convert a b --dtype f32 --shard-bytes 0", 0, "b: written as f32");
    assert_run("ckpt verify b", 0, digest); /* wider is the same */
    assert_false(k2_file_exists(left));
    k2_free(left);
    assert_run("ckpt convert b c", 0, "c: written as bf16");
    assert_run("ckpt verify c", 0, digest);
    assert_run("ckpt convert a d --dtype fp8", 0, "d: written as fp8");
    assert_run("ckpt show d", 0, "quantised: fp8 e4m3 in blocks of 128 x 128");
    assert_run("ckpt verify d", 0, "d: ok, ");
    assert_null(strstr(said, digest));
    assert_run("ckpt convert a d", 2, "d: exists already");
    k2_free(digest);
}

static void damage(const char *name, long at, const void *bytes, size_t n)
{
    char *path = k2_asprintf("%s/%s", dir, name);
    FILE *f = fopen(path, "r+b");
    assert_true(f && fseek(f, at, at < 0 ? SEEK_END : SEEK_SET) == 0 && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    k2_free(path);
}

static void write_text(const char *name, const char *text)
{
    char *path = k2_asprintf("%s/%s", dir, name);
    assert_int_equal(k2_file_write_atomic(path, text, strlen(text), NULL), K2_OK);
    k2_free(path);
}

static void damaged_directories(void **state)
{
    (void)state;
    static const unsigned char nan[] = {0xc0, 0x7f}, other[] = {0x01, 0x3c};
    char *from = k2_asprintf("%s/a/model-00003-of-00003.safetensors", dir), *to = k2_asprintf("%s/third", dir);
    char *stray = k2_asprintf("%s/a/model-00001-of-00002.safetensors", dir);
    damage("a/model-00003-of-00003.safetensors", -2, other, 2);
    assert_run("ckpt verify a", 2, "model-00003-of-00003.safetensors: its data is not that of the digest in its header");
    damage("a/model-00003-of-00003.safetensors", -2, nan, 2);
    assert_run("ckpt verify a", 2, "is NaN or infinite");
    assert_run("ckpt convert a b", 2, "is NaN or infinite");
    assert_run("ckpt show a", 0, "layers 2");
    assert_int_equal(rename(from, to), 0);
    assert_run("ckpt verify a", 2, "model-00003-of-00003.safetensors: cannot open");
    assert_run("ckpt show a", 2, "model-00003-of-00003.safetensors: cannot open");
    assert_int_equal(rename(to, from), 0);
    assert_int_equal(link(from, stray), 0);
    assert_run("ckpt verify a", 2,
               "model-00001-of-00002.safetensors: is named like the model's weights, but is not part of them");
    assert_int_equal(unlink(stray), 0);
    write_text("a/optimizer.state", "12345678");
    assert_run("ckpt verify a", 2, "a/optimizer.state: ");
    k2_free(from);
    k2_free(to);
    k2_free(stray);
}

/* The same weights beside other sizes. */
static void sizes_that_do_not_fit(void **state)
{
    (void)state;
    char *path = k2_asprintf("%s/a/config.json", dir);
    k2_dims dims = tiny_dims();
    dims.hidden_size = 48;
    assert_int_equal(k2_weights_dims_write(&dims, path, NULL), K2_OK);
    assert_run("ckpt verify a", 2, "tensor model.embed_tokens.weight has the shape [264,32], expected [264,48]");
    dims = tiny_dims();
    dims.num_hidden_layers = 3;
    assert_int_equal(k2_weights_dims_write(&dims, path, NULL), K2_OK);
    assert_run("ckpt verify a", 2, "tensor model.layers.2.");
    dims = tiny_dims();
    dims.q_lora_rank = 0;
    assert_int_equal(k2_weights_dims_write(&dims, path, NULL), K2_OK);
    assert_run("ckpt verify a", 2, "tensor model.layers.0.self_attn.q_proj.weight is missing");
    k2_free(path);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {T(usage), T(show), T(verify_and_convert), T(damaged_directories),
                                       T(sizes_that_do_not_fit)};
    return cmocka_run_group_tests_name("ckpt", tests, NULL, NULL);
}
