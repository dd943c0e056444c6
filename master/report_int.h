/* report, inside: what report.c and view.c share. */
#ifndef K2_MASTER_REPORT_INT_H
#define K2_MASTER_REPORT_INT_H

#include "master/io_int.h"
#include "master/paper_int.h"

#define TRAINED_MAX 512u /* metrics of one step that are kept: those of a model with some hundred layers */
#define VIEW_EVENTS 4u   /* last lines shown under the live view */
#define VIEW_LINE_MAX 256u

struct k2m_reporter {
    const k2m_run *run;
    k2_log *log;
    k2m_paper *paper;
    bool tty, evaluated;
    uint64_t start_ns, rl_ns, drawn_ns;
    struct {
        char name[K2_WIRE_NAME_MAX + 1];
        double value;
    } trained[TRAINED_MAX]; /* of rank 0's last step */
    uint32_t trained_count;
    uint32_t batch_trajectories;
    double batch_reward, batch_length, batch_cuts;
    double last_reward, last_accuracy;
    double generate_s, train_s, update_s, eval_s, pretrain_s, generated, train_tokens, train_busy_s, pretrain_tokens;
    uint32_t view_lines; /* on the screen, to be drawn over */
    char events[VIEW_EVENTS][VIEW_LINE_MAX];
    uint32_t event_count;
    char proxy[K2M_ENDPOINT_MAX]; /* address of the proxy that was told last */
};

double k2m_trained(const k2m_reporter *p, const char *name); /* NAN when the trainer did not tell */
/* One line for people: printed where there is no live view, kept under it where there is one. */
void k2m_say(k2m_reporter *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void k2m_view_clear(k2m_reporter *p);

#endif
