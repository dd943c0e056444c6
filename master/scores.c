/* scores - see scores_int.h. */
#include "master/scores_int.h"

#include <cjson/cJSON.h>
#include <float.h>
#include <math.h>
#include <stdio.h>

#define DEPTH_MAX 8u                 /* it has three levels */
#define EXACT_MAX 9007199254740992.0 /* 2^53 */

static bool read_id(const cJSON *v, uint64_t *out)
{
    if (cJSON_IsString(v)) return k2_str_u64(v->valuestring, out);
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble <= EXACT_MAX)) return false;
    *out = (uint64_t)v->valuedouble;
    return (double)*out == v->valuedouble;
}

static bool read_score(const cJSON *v, uint64_t id, k2m_score *out)
{
    uint64_t found = 0;
    const cJSON *reward = cJSON_GetObjectItemCaseSensitive(v, "reward"),
                *detail = cJSON_GetObjectItemCaseSensitive(v, "detail");
    if (!read_id(cJSON_GetObjectItemCaseSensitive(v, "trajectory"), &found) || found != id) return false;
    out->has_reward = cJSON_IsNumber(reward) && fabs(reward->valuedouble) <= (double)FLT_MAX; /* trainers take floats */
    out->reward = out->has_reward ? reward->valuedouble : 0;
    const char *why = cJSON_IsString(detail) ? detail->valuestring : "";
    if (cJSON_IsNumber(reward) && !out->has_reward) why = "the reward is beyond what a float holds";
    snprintf(out->detail, sizeof out->detail, "%s", why);
    return true;
}

bool k2m_scores_parse(const char *body, size_t n, const uint64_t *ids, uint32_t count, k2m_score *out)
{
    cJSON *root = k2_json_fault(body, n, DEPTH_MAX) ? NULL : cJSON_ParseWithLength(body, n);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "scores");
    bool ok = cJSON_IsArray(list) && cJSON_GetArraySize(list) == (int)count;
    uint32_t i = 0;
    for (const cJSON *v = ok ? list->child : NULL; v && ok; v = v->next, i++) ok = read_score(v, ids[i], &out[i]);
    cJSON_Delete(root);
    return ok;
}

uint32_t k2m_lost_parse(const char *body, size_t n, k2m_lost out[K2M_LOST_MAX])
{
    cJSON *root = k2_json_fault(body, n, DEPTH_MAX) ? NULL : cJSON_ParseWithLength(body, n);
    const cJSON *k2 = cJSON_GetObjectItemCaseSensitive(root, "k2"), *list = cJSON_GetObjectItemCaseSensitive(k2, "broke");
    uint32_t count = 0;
    for (const cJSON *v = cJSON_IsArray(list) ? list->child : NULL; v && count < K2M_LOST_MAX; v = v->next) {
        k2m_lost *x = &out[count];
        x->alone = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(v, "alone"));
        count += read_id(cJSON_GetObjectItemCaseSensitive(v, "engine"), &x->worker) &&
                 read_id(cJSON_GetObjectItemCaseSensitive(v, "incarnation"), &x->incarnation);
    }
    cJSON_Delete(root);
    return count;
}
