/* trainer_io - turns messages of the control plane into work of the trainer, and results into DONE. */
#include "trainer/trainer.h"

#include <stdio.h>

int k2_trainer_main(int argc, char **argv)
{
    (void)argv;
    (void)argc;
    fprintf(stderr, "k2rl trainer: not linked in this build\n");
    return 1;
}
