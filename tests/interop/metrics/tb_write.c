/* Writes one event file into argv[1] for TensorBoard's own reader: 100 scalars of two tags and a text. */
#include "common/metrics/metrics.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    k2_tb *tb = NULL;
    k2_error err = {0};
    if (argc != 2 || k2_tb_open(argv[1], &tb, &err) != K2_OK) {
        fprintf(stderr, "tb_write DIR: %s\n", err.text);
        return 2;
    }
    for (int i = 0; i < 100; i++) {
        k2_tb_scalar(tb, "reward/mean", i, i / 128.0, 1e9 + i);
        k2_tb_scalar(tb, "loss", i, -i, 1e9 + i);
    }
    k2_tb_text(tb, "config", 0, "{\"seed\": 1}", 1e9);
    k2_tb_close(tb);
    return 0;
}
