/* SPDX-License-Identifier: Apache-2.0
 * Settings of verbs from the environment. */
#include "transport/verbs/device/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "wire/endpoint/verbs.h"

#define QPS_DEFAULT 1 /* one QP fills a link that one core can drive; rxe and bonds need more */

static rdt_status
settings_read_number(const char *name, long least, long most, long unset, long *out,
                     struct rdt_error *err)
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
settings_read_byte(const char *name, long least, long most, uint8_t *out, struct rdt_error *err)
{
    long value;
    const rdt_status status =
        settings_read_number(name, least, most, RDTI_VERBS_UNSET, &value, err);

    *out = (uint8_t)value;
    return status;
}

/* ---- Lists ---------------------------------------------------------------------------------- */

/* The next entry of a comma-separated list; false at its end. */
static bool
settings_next_entry(const char **at, char *out, size_t cap)
{
    if (**at == '\0')
        return false;
    const size_t len = strcspn(*at, ",");
    (void)snprintf(out, cap, "%.*s", (int)len, *at);
    *at += len + ((*at)[len] == ',' ? 1 : 0);
    return true;
}

/* A decimal number of at most `most`; -1: invalid. */
static int32_t
settings_parse_small(const char *text, int32_t most)
{
    const size_t digits = strspn(text, "0123456789");

    if (digits == 0 || digits > 9 || text[digits] != '\0')
        return -1;
    const long value = strtol(text, NULL, 10);
    return value <= most ? (int32_t)value : -1;
}

/* "mlx5_0", "rxe1:1": keeps the name, and cuts off the port. Port 0: any; -1: invalid. */
static int32_t
settings_split_device(char *entry)
{
    char *colon = strchr(entry, ':');

    if (colon == NULL)
        return 0;
    *colon = '\0';
    const int32_t port = settings_parse_small(colon + 1, UINT8_MAX);
    return port > 0 ? port : -1;
}

/* "3", "rxe0=1": keeps the name, or "" without one. Returns the index; -1: invalid. */
static int32_t
settings_split_gid_index(char *entry)
{
    char *equals = strchr(entry, '=');
    const int32_t index = settings_parse_small(equals != NULL ? equals + 1 : entry, UINT8_MAX);

    *(equals != NULL ? equals : entry) = '\0';
    return index;
}

static rdt_status
settings_check_devices(const char *list, struct rdt_error *err)
{
    const char *at = list;
    char entry[RDTI_VERBS_LIST_BYTES];
    char name[RDTI_VERBS_LIST_BYTES];

    while (settings_next_entry(&at, entry, sizeof(entry))) {
        rdti_text_copy(name, sizeof(name), entry);
        if (settings_split_device(name) < 0 || name[0] == '\0')
            return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                                  "RDMATENSOR_VERBS_DEVICES=%.80s: \"%.40s\" is not a device, nor "
                                  "device:port with a port from 1 to 255",
                                  list, entry);
    }
    return RDT_OK;
}

static rdt_status
settings_check_gid_indices(const char *list, struct rdt_error *err)
{
    const char *at = list;
    char entry[RDTI_VERBS_LIST_BYTES];
    char name[RDTI_VERBS_LIST_BYTES];

    while (settings_next_entry(&at, entry, sizeof(entry))) {
        rdti_text_copy(name, sizeof(name), entry);
        if (settings_split_gid_index(name) < 0 || entry[0] == '=')
            return rdti_error_set(
                err, RDT_ENOTVIABLE, 0,
                "RDMATENSOR_VERBS_GID_INDEX=%.80s: \"%.40s\" is not an index, nor "
                "device=index, from 0 to 255",
                list, entry);
    }
    return RDT_OK;
}

static rdt_status
settings_read_list(const char *name, char out[RDTI_VERBS_LIST_BYTES], struct rdt_error *err)
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
settings_read_lists(struct rdti_verbs_settings *out, struct rdt_error *err)
{
    rdt_status status = settings_read_list("RDMATENSOR_VERBS_DEVICES", out->devices, err);

    if (status == RDT_OK)
        status = settings_check_devices(out->devices, err);
    if (status == RDT_OK)
        status = settings_read_list("RDMATENSOR_VERBS_GID_INDEX", out->gid_indices, err);
    return status == RDT_OK ? settings_check_gid_indices(out->gid_indices, err) : status;
}

/* ---- Reading -------------------------------------------------------------------------------- */

static rdt_status
settings_read_notify(struct rdti_verbs_settings *out, struct rdt_error *err)
{
    static const char *const names[] = {"imm", "flag", "auto"};
    const char *unsafe = getenv("RDMATENSOR_VERBS_FLAG_UNSAFE");
    const char *text = getenv("RDMATENSOR_VERBS_NOTIFY");

    out->is_flag_unsafe = false;
    if (unsafe != NULL && unsafe[0] != '\0' && !rdti_text_flag(unsafe, &out->is_flag_unsafe))
        return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                              "RDMATENSOR_VERBS_FLAG_UNSAFE=%.40s: 0 or 1 is meant", unsafe);
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
settings_read_mtu(uint32_t *out, struct rdt_error *err)
{
    long mtu;
    const rdt_status status = settings_read_number("RDMATENSOR_VERBS_MTU", 256, 4096, 0, &mtu, err);

    *out = (uint32_t)mtu;
    if (status == RDT_OK && (mtu & (mtu - 1)) != 0)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                              "RDMATENSOR_VERBS_MTU=%ld: 256, 512, 1024, 2048 or 4096 is meant",
                              mtu);
    return status;
}

static rdt_status
settings_read_pkey(struct rdti_verbs_settings *out, struct rdt_error *err)
{
    long index = -1;
    long pkey;

    rdt_status status = settings_read_number("RDMATENSOR_VERBS_PKEY", 1, 0xffff, 0, &pkey, err);
    if (status == RDT_OK)
        status = settings_read_number("RDMATENSOR_VERBS_PKEY_INDEX", 0, 0xffff, -1, &index, err);
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

    rdt_status status = settings_read_lists(&s, err);
    if (status == RDT_OK)
        status = settings_read_number("RDMATENSOR_VERBS_QPS", 1, RDTI_VERBS_QPS_MAX, QPS_DEFAULT,
                                      &qps, err);
    if (status == RDT_OK)
        status = settings_read_number("RDMATENSOR_VERBS_LINKS", 1, RDTI_VERBS_PORTS_MAX,
                                      RDTI_VERBS_PORTS_MAX, &links, err);
    if (status == RDT_OK)
        status = settings_read_pkey(&s, err);
    if (status == RDT_OK)
        status = settings_read_mtu(&s.mtu_bytes, err);
    if (status == RDT_OK)
        status = settings_read_byte("RDMATENSOR_VERBS_TIMEOUT", 1, 31, &s.timeout, err);
    if (status == RDT_OK)
        status = settings_read_byte("RDMATENSOR_VERBS_RETRY", 0, 6, &s.retry, err);
    if (status == RDT_OK)
        status = settings_read_byte("RDMATENSOR_VERBS_SL", 0, 15, &s.service_level, err);
    if (status == RDT_OK) /* 0xff means unset; the last two bits are not part of the class */
        status = settings_read_byte("RDMATENSOR_VERBS_TC", 0, 254, &s.traffic_class, err);
    if (status == RDT_OK)
        status = settings_read_notify(&s, err);
    if (status != RDT_OK)
        return status;
    s.qp_count = (uint32_t)qps;
    s.max_links = (uint32_t)links;
    *out = s;
    return RDT_OK;
}

/* ---- Devices -------------------------------------------------------------------------------- */

/* A list as it was set, and the name of a device in it that must exist. */
struct named {
    const char *variable;
    const char *text;
    const char *device;
};

static rdt_status
settings_find_device(const struct named *named, const struct rdti_verbs_ops *ops,
                     struct ibv_device **list, int count, struct rdt_error *err)
{
    char names[256] = "";

    for (int i = 0; i < count; i++) {
        const size_t used = strlen(names);

        if (strcmp(ops->get_device_name(list[i]), named->device) == 0)
            return RDT_OK;
        (void)snprintf(names + used, sizeof(names) - used, "%s%s", i > 0 ? ", " : "",
                       ops->get_device_name(list[i]));
    }
    return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                          "%s=%.80s names %.40s, which is not there; this machine has %s",
                          named->variable, named->text, named->device, names);
}

rdt_status
rdti_verbs_check_names(const struct rdti_verbs_settings *settings, const struct rdti_verbs_ops *ops,
                       struct ibv_device **list, int count, struct rdt_error *err)
{
    char entry[RDTI_VERBS_LIST_BYTES];
    struct named named = {"RDMATENSOR_VERBS_DEVICES", settings->devices, entry};
    const char *at = settings->devices;
    rdt_status status = RDT_OK;

    if (count == 0) /* the caller reports that, as the better reason */
        return RDT_OK;
    while (status == RDT_OK && settings_next_entry(&at, entry, sizeof(entry))) {
        (void)settings_split_device(entry);
        status = settings_find_device(&named, ops, list, count, err);
    }
    named = (struct named){"RDMATENSOR_VERBS_GID_INDEX", settings->gid_indices, entry};
    at = settings->gid_indices;
    while (status == RDT_OK && settings_next_entry(&at, entry, sizeof(entry))) {
        (void)settings_split_gid_index(entry);
        if (entry[0] != '\0') /* else it applies to every device */
            status = settings_find_device(&named, ops, list, count, err);
    }
    return status;
}

rdt_status
rdti_verbs_check_ports(const struct rdti_verbs_settings *settings, const char *device,
                       uint32_t port_count, struct rdt_error *err)
{
    const char *at = settings->devices;
    char entry[RDTI_VERBS_LIST_BYTES];

    while (settings_next_entry(&at, entry, sizeof(entry))) {
        const int32_t port = settings_split_device(entry);

        if (strcmp(entry, device) == 0 && port > (int32_t)port_count)
            return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                                  "RDMATENSOR_VERBS_DEVICES=%.80s names port %d of %.40s, which "
                                  "has %u",
                                  settings->devices, port, device, port_count);
    }
    return RDT_OK;
}

bool
rdti_verbs_is_wanted(const struct rdti_verbs_settings *settings, const char *device, uint32_t port)
{
    const char *at = settings->devices;
    char entry[RDTI_VERBS_LIST_BYTES];

    if (*at == '\0')
        return true;
    while (settings_next_entry(&at, entry, sizeof(entry))) {
        const int32_t wanted = settings_split_device(entry);

        if (strcmp(entry, device) == 0 && (wanted == 0 || wanted == (int32_t)port))
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

    while (settings_next_entry(&at, entry, sizeof(entry))) {
        const int32_t index = settings_split_gid_index(entry);

        if (entry[0] == '\0' || strcmp(entry, device) == 0)
            found = index;
    }
    return found;
}
