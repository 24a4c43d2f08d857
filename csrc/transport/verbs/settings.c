/* SPDX-License-Identifier: Apache-2.0
 * Settings of verbs from the environment. */
#include "transport/verbs/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "wire/verbs.h"

#define QPS_DEFAULT 1 /* one QP fills a link that one core can drive; rxe and bonds gain by more */

static rdt_status
read_number(const char *name, long least, long most, long unset, long *out, struct rdt_error *err)
{
    const char *text = getenv(name);
    char *end = NULL;

    *out = unset;
    if (text == NULL || text[0] == '\0')
        return RDT_OK;
    errno = 0;
    const long value = strtol(text, &end, 0);
    if (errno != 0 || *end != '\0' || value < least || value > most)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0, "%s=%.40s: a number from %ld to %ld is meant",
                              name, text, least, most);
    *out = value;
    return RDT_OK;
}

static rdt_status
read_byte(const char *name, long least, long most, uint8_t *out, struct rdt_error *err)
{
    long value;
    const rdt_status status = read_number(name, least, most, RDTI_VERBS_UNSET, &value, err);

    *out = (uint8_t)value;
    return status;
}

static rdt_status
read_list(const char *name, char out[RDTI_VERBS_LIST_BYTES], struct rdt_error *err)
{
    const char *text = getenv(name);

    out[0] = '\0';
    if (text == NULL)
        return RDT_OK;
    if (strlen(text) >= RDTI_VERBS_LIST_BYTES)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0, "%s has %zu bytes, at most %d are read", name,
                              strlen(text), RDTI_VERBS_LIST_BYTES - 1);
    rdti_text_copy(out, RDTI_VERBS_LIST_BYTES, text);
    return RDT_OK;
}

static rdt_status
read_notify(struct rdti_verbs_settings *out, struct rdt_error *err)
{
    static const char *const names[] = {"imm", "flag", "auto"};
    const char *text = getenv("RDMATENSOR_VERBS_NOTIFY");

    long unsafe;
    const rdt_status status = read_number("RDMATENSOR_VERBS_FLAG_UNSAFE", 0, 1, 0, &unsafe, err);

    if (status != RDT_OK)
        return status;
    out->is_flag_unsafe = unsafe != 0;
    out->notify = RDTI_VERBS_IMM;
    if (text == NULL || text[0] == '\0')
        return RDT_OK;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i]) != 0)
            continue;
        out->notify = (enum rdti_verbs_notify)i;
        return RDT_OK;
    }
    return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                          "RDMATENSOR_VERBS_NOTIFY=%.40s: imm, flag or auto is meant", text);
}

static rdt_status
read_mtu(uint32_t *out, struct rdt_error *err)
{
    long mtu;
    const rdt_status status = read_number("RDMATENSOR_VERBS_MTU", 256, 4096, 0, &mtu, err);

    *out = (uint32_t)mtu;
    if (status == RDT_OK && (mtu & (mtu - 1)) != 0)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                              "RDMATENSOR_VERBS_MTU=%ld: 256, 512, 1024, 2048 or 4096 is meant",
                              mtu);
    return status;
}

static rdt_status
read_pkey(struct rdti_verbs_settings *out, struct rdt_error *err)
{
    long index = -1;
    long pkey;

    rdt_status status = read_number("RDMATENSOR_VERBS_PKEY", 1, 0xffff, 0, &pkey, err);
    if (status == RDT_OK)
        status = read_number("RDMATENSOR_VERBS_PKEY_INDEX", 0, 0xffff, -1, &index, err);
    if (status != RDT_OK)
        return status;
    if (pkey != 0 && index >= 0)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                              "RDMATENSOR_VERBS_PKEY and RDMATENSOR_VERBS_PKEY_INDEX are both set: "
                              "one is meant");
    out->pkey = (uint16_t)pkey;
    out->pkey_index = (int32_t)index;
    return RDT_OK;
}

rdt_status
rdti_verbs_read_settings(struct rdti_verbs_settings *out, struct rdt_error *err)
{
    struct rdti_verbs_settings s = {0};
    long qps = 0;
    long links = 0;

    rdt_status status = read_list("RDMATENSOR_VERBS_DEVICES", s.devices, err);
    if (status == RDT_OK)
        status = read_list("RDMATENSOR_VERBS_GID_INDEX", s.gid_indices, err);
    if (status == RDT_OK)
        status = read_number("RDMATENSOR_VERBS_QPS", 1, RDTI_VERBS_QPS_MAX, QPS_DEFAULT, &qps, err);
    if (status == RDT_OK)
        status = read_number("RDMATENSOR_VERBS_LINKS", 1, RDTI_VERBS_PORTS_MAX,
                             RDTI_VERBS_PORTS_MAX, &links, err);
    if (status == RDT_OK)
        status = read_pkey(&s, err);
    if (status == RDT_OK)
        status = read_mtu(&s.mtu_bytes, err);
    if (status == RDT_OK)
        status = read_byte("RDMATENSOR_VERBS_TIMEOUT", 1, 31, &s.timeout, err);
    if (status == RDT_OK)
        status = read_byte("RDMATENSOR_VERBS_RETRY", 0, 6, &s.retry, err);
    if (status == RDT_OK)
        status = read_byte("RDMATENSOR_VERBS_SL", 0, 15, &s.service_level, err);
    if (status == RDT_OK) /* 0xff means unset; a class's last two bits are not its own anyhow */
        status = read_byte("RDMATENSOR_VERBS_TC", 0, 254, &s.traffic_class, err);
    if (status == RDT_OK)
        status = read_notify(&s, err);
    if (status != RDT_OK)
        return status;
    s.qp_count = (uint32_t)qps;
    s.max_links = (uint32_t)links;
    *out = s;
    return RDT_OK;
}

/* The next entry of a comma-separated list; false at its end. */
static bool
next_entry(const char **at, char *out, size_t cap)
{
    if (**at == '\0')
        return false;
    const size_t len = strcspn(*at, ",");
    (void)snprintf(out, cap, "%.*s", (int)len, *at);
    *at += len + ((*at)[len] == ',' ? 1 : 0);
    return true;
}

bool
rdti_verbs_is_wanted(const struct rdti_verbs_settings *settings, const char *device, uint32_t port)
{
    const char *at = settings->devices;
    char entry[RDTI_VERBS_LIST_BYTES];

    if (*at == '\0')
        return true;
    while (next_entry(&at, entry, sizeof(entry))) {
        char *colon = strchr(entry, ':');

        if (colon != NULL)
            *colon = '\0';
        if (strcmp(entry, device) == 0 &&
            (colon == NULL || strtoul(colon + 1, NULL, 10) == (unsigned long)port))
            return true;
    }
    return false;
}

int32_t
rdti_verbs_wanted_gid(const struct rdti_verbs_settings *settings, const char *device)
{
    const char *at = settings->gid_indices;
    char entry[RDTI_VERBS_LIST_BYTES];
    int32_t found = -1;

    while (next_entry(&at, entry, sizeof(entry))) {
        char *equals = strchr(entry, '=');

        if (equals != NULL)
            *equals = '\0';
        if (equals == NULL || strcmp(entry, device) == 0)
            found = (int32_t)strtol(equals != NULL ? equals + 1 : entry, NULL, 10);
    }
    return found;
}
