/* SPDX-License-Identifier: Apache-2.0
 * Update rules: every table of kernels gives the bits of a scalar reference. */
#include "harness.h"

#include <math.h>

#include "ps/rules/rules.h"

enum { COUNT_MAX = 203, GUARD = 8 };

static uint64_t random_state = 42;

static uint32_t
random_bits(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 32);
}

/* Of all signs and of magnitudes from 2^-20 to 2^12, some zeros. */
static float
random_float(void)
{
    const uint32_t bits = random_bits();

    if (bits % 17 == 0)
        return bits % 2 != 0 ? 0.0f : -0.0f;
    return ldexpf((float)(int32_t)random_bits() / 2147483648.0f, (int)(bits % 32) - 20);
}

static float
reference_row_sum(const float *g, uint64_t count)
{
    float sums[8] = {0};

    for (uint64_t i = 0; i < count; i++)
        sums[i % 8] = sums[i % 8] + g[i] * g[i];
    const float a = (sums[0] + sums[4]) + (sums[2] + sums[6]);
    const float b = (sums[1] + sums[5]) + (sums[3] + sums[7]);
    return a + b;
}

/* One element of the rules whose elements are independent; s0 and s1 are its state. */
static void
reference_element(uint32_t kind, const struct rdti_ps_factors *f, float *v, float *s0, float *s1,
                  float g)
{
    switch (kind) {
    case RDT_PS_ASSIGN:
        *v = g;
        return;
    case RDT_PS_ADD:
        *v = *v + g;
        return;
    case RDT_PS_SGD:
        g = g + f->weight_decay * *v;
        *v = *v - f->lr * g;
        return;
    case RDT_PS_MOMENTUM:
        g = g + f->weight_decay * *v;
        *s0 = f->momentum * *s0 + g;
        *v = *v - f->lr * (f->is_nesterov ? g + f->momentum * *s0 : *s0);
        return;
    case RDT_PS_ADAGRAD:
        *s0 = *s0 + g * g;
        *v = *v - f->lr * (g / (sqrtf(*s0) + f->eps));
        return;
    case RDT_PS_LAZY_ADAM:
        *s0 = *s0 + f->gradient1 * (g - *s0);
        *s1 = *s1 + f->gradient2 * (g * g - *s1);
        *v = *v - f->step_size * (*s0 / (sqrtf(*s1) + f->eps));
        return;
    default:
        g = g + f->weight_decay * *v;
        *s0 = *s0 + f->gradient1 * (g - *s0);
        *s1 = f->beta2 * *s1 + f->gradient2 * (g * g);
        *v = f->kept * *v - f->step_size * (*s0 / (sqrtf(*s1) / f->root2 + f->eps));
    }
}

static void
reference(uint32_t kind, const struct rdti_ps_factors *f, float *v, float *s, const float *g,
          uint64_t count)
{
    float none[2];

    if (kind == RDT_PS_ROW_ADAGRAD && count > 0) {
        s[0] = s[0] + reference_row_sum(g, count) / (float)count;
        const float by = f->lr / (sqrtf(s[0]) + f->eps);
        for (uint64_t i = 0; i < count; i++)
            v[i] = v[i] - by * g[i];
        return;
    }
    for (uint64_t i = 0; i < count && kind != RDT_PS_ROW_ADAGRAD; i++) {
        const bool has_two = kind >= RDT_PS_LAZY_ADAM;
        const bool has_one = has_two || kind == RDT_PS_MOMENTUM || kind == RDT_PS_ADAGRAD;
        reference_element(kind, f, v + i, has_one ? s + i : none,
                          has_two ? s + count + i : none + 1, g[i]);
    }
}

static void
check_same(const char *what, uint32_t kind, const float *got, const float *want, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        CHECK_MSG(memcmp(got + i, want + i, sizeof(*got)) == 0 || (isnan(got[i]) && isnan(want[i])),
                  "%s of rule %u: element %llu is %a, want %a", what, kind, (unsigned long long)i,
                  (double)got[i], (double)want[i]);
}

static struct rdt_ps_rule
rule_of(uint32_t kind, uint32_t variant)
{
    struct rdt_ps_rule rule = {.struct_size = sizeof(rule), .kind = kind, .lr = 0.1, .eps = 1e-8};
    const bool decays = kind == RDT_PS_SGD || kind == RDT_PS_MOMENTUM || kind == RDT_PS_ADAM ||
                        kind == RDT_PS_ADAMW;

    rule.momentum = kind == RDT_PS_MOMENTUM ? 0.9 : 0.0;
    rule.nesterov = kind == RDT_PS_MOMENTUM ? variant & 1 : 0;
    rule.weight_decay = decays && (variant & 2) != 0 ? 0.01 : 0.0;
    rule.beta1 = 0.9;
    rule.beta2 = 0.999;
    rule.initial = kind == RDT_PS_ADAGRAD ? 0.5 : 0.0;
    return rule;
}

static void
check_rule(const struct rdti_ps_kernels *kernels, uint32_t kind, uint32_t variant, uint64_t count)
{
    const struct rdt_ps_rule rule = rule_of(kind, variant);
    static float got[3 * COUNT_MAX + GUARD];
    static float want[3 * COUNT_MAX + GUARD];
    static float gradient[COUNT_MAX + GUARD];
    struct rdti_ps_factors factors;

    CHECK_INT_EQ(rdt_ps_rule_check(&rule, NULL), RDT_OK);
    const uint64_t floats = count + rdti_ps_rule_state_floats(&rule, count);
    for (uint64_t i = 0; i < floats + GUARD; i++)
        got[i] = want[i] = i < count    ? random_float()
                           : i < floats ? rdti_ps_rule_initial(&rule)
                                        : 7;
    for (uint64_t step = 1; step <= 4; step++) {
        for (uint64_t i = 0; i < count; i++)
            gradient[i] = random_float();
        rdti_ps_rule_factors(&rule, step, 1.0 / (double)step, &factors);
        kernels->update[kind](&factors, got, got + count, gradient, count);
        reference(kind, &factors, want, want + count, gradient, count);
        check_same("memory", kind, got, want, floats + GUARD);
    }
}

static void
check_kernels(const struct rdti_ps_kernels *kernels)
{
    for (uint32_t kind = RDT_PS_ASSIGN; kind < RDT_PS_CUSTOM; kind++)
        for (uint32_t variant = 0; variant < 4; variant++)
            for (uint64_t count = 0; count <= COUNT_MAX; count++)
                check_rule(kernels, kind, variant, count);
}

TEST(generic_kernels_give_the_reference_s_bits)
{
    check_kernels(&rdti_ps_kernels_generic);
}

TEST(avx2_kernels_give_the_reference_s_bits)
{
#if defined(__x86_64__)
    if (rdti_ps_has_avx2()) {
        check_kernels(&rdti_ps_kernels_avx2);
        return;
    }
#endif
    CHECK(rdti_ps_kernels_best() == &rdti_ps_kernels_generic);
}

TEST(wrong_rules_are_refused)
{
    struct rdt_error err = {0};

    for (uint32_t kind = RDT_PS_ASSIGN; kind < RDT_PS_CUSTOM; kind++) {
        struct rdt_ps_rule rule = rule_of(kind, 0);
        CHECK_INT_EQ(rdt_ps_rule_check(&rule, &err), RDT_OK);
        rule.lr = -1.0;
        CHECK_INT_EQ(rdt_ps_rule_check(&rule, &err), RDT_EINVAL);
        rule.lr = NAN;
        CHECK_INT_EQ(rdt_ps_rule_check(&rule, &err), RDT_EINVAL);
        CHECK(strstr(err.message, "lr") != NULL);
        rule = rule_of(kind, 0);
        rule.beta1 = 1.0;
        CHECK_INT_EQ(rdt_ps_rule_check(&rule, &err), RDT_EINVAL);
        rule = rule_of(kind, 0);
        rule.momentum = 0.5;
        CHECK_INT_EQ(rdt_ps_rule_check(&rule, &err), kind == RDT_PS_MOMENTUM ? RDT_OK : RDT_EINVAL);
        rule = rule_of(kind, 0);
        rule.nesterov = 2;
        CHECK_INT_EQ(rdt_ps_rule_check(&rule, &err), RDT_EINVAL);
    }
    struct rdt_ps_rule rule = rule_of(RDT_PS_ADAGRAD, 0);
    rule.weight_decay = 0.1;
    CHECK_INT_EQ(rdt_ps_rule_check(&rule, &err), RDT_EINVAL);
    rule = rule_of(RDTI_PS_RULE_LIMIT, 0);
    CHECK_INT_EQ(rdt_ps_rule_check(&rule, &err), RDT_EINVAL);
    rule = rule_of(RDT_PS_SGD, 0);
    rule.struct_size = 4;
    CHECK_INT_EQ(rdt_ps_rule_check(&rule, &err), RDT_EINVAL);
    CHECK_INT_EQ(rdt_ps_rule_apply(&rule, 1, 1.0, NULL, NULL, NULL, 0, &err), RDT_EINVAL);
}

TEST_MAIN()
