/* paper - metrics.jsonl and TensorBoard's file, written on a pool thread: a slow disk does not hold the loop up.
 *
 * What is reported goes onto a sheet; when the one before has been written it goes to the pool as a whole. So the order is kept, one
 * thread at a time writes, and the slower the disk the more goes with one write. Sheets are bounded: what has no room is dropped,
 * and the log says so once. A line that the disk does not take whole is taken back whole.
 */
#ifndef K2_MASTER_PAPER_INT_H
#define K2_MASTER_PAPER_INT_H

#include "common/base/base.h"
#include "common/log/log.h"
#include "common/loop/loop.h"

#define K2M_PAPER_BYTES_MAX   (4u << 20) /* of lines on one sheet: some thousand iterations */
#define K2M_PAPER_SCALARS_MAX 65536u     /* of one sheet */

typedef struct k2m_paper k2m_paper;

/* errors  those of the files, which are opened and begun here */
k2_code k2m_paper_open(const char *run_dir, const char *config_json, k2_loop *loop, k2_log *log, k2m_paper **out, k2_error *err);
/* A whole line, with its end; copied. */
void k2m_paper_line(k2m_paper *p, const char *line, size_t n);
void k2m_paper_scalar(k2m_paper *p, const char *group, const char *name, uint64_t step, double value);
/* To the disk with what has been reported so far. */
void k2m_paper_send(k2m_paper *p);
/* After k2_loop_free, which has brought to the disk what was sent. NULL is fine. */
void k2m_paper_close(k2m_paper *p);

#endif
